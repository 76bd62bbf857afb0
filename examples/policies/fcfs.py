"""Stock vLLM: turns are served as they arrive, and KV stays in the cache by least recent use.

Source: vLLM's scheduler and block pool (vllm/v1/core of vLLM 0.32). Nothing was left open.
A start for rules of your own: override what they answer differently. `Policy` says what each
method may answer; `agentkv simulate --gpu h100 --policy examples/policies/fcfs.py:Fcfs` runs it.
"""

from __future__ import annotations

from agentkv.policies import PREEMPTED, TTL, UNPINNED, Policy, Rank, RestoreCost, Turn


class Fcfs(Policy):
    """The defaults of `Policy`, written out: what stock does about order and finished turns."""

    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        """Free a finished turn's blocks: they stay cached until others take them."""
        return TTL(0.0, "stock frees a turn when it ends")

    def rank(self, turn: Turn, *, is_preempted: bool, is_pinned: bool) -> Rank:
        """In order of the turn's arrival; a preempted one comes first."""
        return (PREEMPTED if is_preempted else UNPINNED, turn.order, 0)
