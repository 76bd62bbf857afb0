"""Every finished turn keeps its KV until its job returns, ends, or memory runs short.

Source: the `preserve` mode of InferCept's code (WukLab/InferCept @3a1a4da), its default.
Left open there: what happens once kept contexts fill the memory. Here `max_ttl_s` bounds each pin
and a shortage ends the newest job's pin first, so that jobs that came first are served first.
Not in it: any weighing of what holding costs, which is what other rules are compared with.
"""

from __future__ import annotations

from agentkv.policies import TTL, Policy, RestoreCost


class PinForever(Policy):
    """Holds each finished turn for as long as the settings allow; order is stock's."""

    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        return self.capped(float("inf"), "pinned until the job returns")
