"""The client that has received least service is served next, a newcomer from where others are.

Source: VTC (arXiv 2401.00588, OSDI 2024; Ying1123/VTC-artifact @192c2e2). Each client has a counter
of weighted tokens: 1 for each of a prompt when it is admitted, 2 for each that is generated. The
next turn is that of the client with the smallest counter. A client that becomes active is lifted to
the least counter of those that are, so that being away saves up nothing.

Left open: who a client is. Here it is a job with its sub-agents; the paper means tenants.
Not in it: generated tokens are charged when the turn ends, in whole blocks, instead of in each
step, and prompts with the next tick. Weights of clients, profiled costs, and stopping at the first
turn that does not fit are left out; the last is what vLLM does anyway. Cached tokens are charged in
full, as in the source.
"""

from __future__ import annotations

from collections import defaultdict

from pydantic import Field

from agentkv.policies import UNPINNED, Job, Policy, Rank, Settings, Turn


class VTCSettings(Settings):
    prompt_weight: float = Field(1.0, ge=0)
    output_weight: float = Field(2.0, ge=0)


class VTC(Policy):
    """Fair shares of tokens between jobs; KV is left to the cache."""

    settings_class = VTCSettings
    settings: VTCSettings
    tick_s = 0.25

    def __init__(self, settings: Settings, pool_tokens: int) -> None:
        super().__init__(settings, pool_tokens)
        self.counters: defaultdict[str, float] = defaultdict(float)
        self._active: defaultdict[str, set[str]] = defaultdict(set)
        """Turns in the engine, by client."""
        self._charged: set[str] = set()
        """Turns whose prompt has been charged."""
        self._has_changed = False

    @staticmethod
    def client_of(job: Job) -> str:
        return job.parent_job_id or job.job_id

    def rank(self, turn: Turn, *, is_preempted: bool, is_pinned: bool) -> Rank:
        client = self.client_of(turn.job)
        if turn.request_id not in self._active[client]:
            self._arrive(client, turn.request_id)
        return (UNPINNED, self.counters[client], turn.order)

    def _arrive(self, client: str, request_id: str) -> None:
        if not self._active[client]:
            others = [self.counters[other] for other, turns in self._active.items() if turns]
            self.counters[client] = max(self.counters[client], min(others, default=0.0))
        self._active[client].add(request_id)

    def charge(self, client: str, amount: float) -> None:
        self.counters[client] += amount
        self._has_changed = True

    def tick(self) -> bool:
        """Charge the prompts that were admitted; True if any counter has changed since."""
        for turn in self.engine.turns:
            if turn.admitted_s is not None:
                self._charge_prompt(turn)
        has_changed, self._has_changed = self._has_changed, False
        return has_changed

    def _charge_prompt(self, turn: Turn) -> None:
        if turn.request_id not in self._charged:
            self._charged.add(turn.request_id)
            prompt_tokens = self.settings.prompt_weight * turn.num_prompt_tokens
            self.charge(self.client_of(turn.job), prompt_tokens)

    def turn_finished(self, turn: Turn, served_s: float) -> None:
        client = self.client_of(turn.job)
        if turn.admitted_s is not None:
            self._charge_prompt(turn)
            output_tokens = max(0, turn.job.context_tokens - turn.num_prompt_tokens)
            self.charge(client, self.settings.output_weight * output_tokens)
        self._charged.discard(turn.request_id)
        self._active[client].discard(turn.request_id)

    def job_ended(self, job: Job) -> None:
        if not self._active[self.client_of(job)]:
            self._active.pop(job.job_id, None)
            self.counters.pop(job.job_id, None)
