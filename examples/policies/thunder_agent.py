"""Whole jobs are paused until the contexts of the others fit, and resumed when theirs fit again.

Source: ThunderAgent (arXiv 2602.13692), and ThunderAgent-org/ThunderAgent @a7eef77 for
`{"rules": "released"}`. Every 5 s, if the contexts of the active jobs exceed the pool, jobs are
paused until they do not: first those whose tool runs, the smallest first, since recomputing grows
with the square; one that the model serves is paused when its turn ends. The paper lets the context
of a running tool count half as much with each second; the code counts it in full, adds 100 tokens
to each active job, and resumes before it pauses. If there is room, paused jobs resume while they
fit: those whose turn waits first, the smallest first. A new job is admitted if no returning turn
waits and it fits.

Left open: a job's context is the prompt of its turn, or what its last turn left. The code marks
every served job once no idle one is left, as it does not subtract those already marked; here the
marked ones are subtracted under both.
Not in it: the choice of a replica, the buffer for a shared prompt (0 in the code, too), and the
estimate of tokens from characters. Pausing moves no KV: that is left to the cache.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agentkv.policies import AdmissionRequest, Job, Policy, Settings, Turn

BUFFER_TOKENS = 100


class ThunderAgentSettings(Settings):
    rules: Literal["paper", "released"] = "paper"
    force_resume_s: float = Field(1800.0, gt=0)
    """Seconds after which a turn of a paused job is let in all the same."""


class ThunderAgent(Policy):
    """Admission of jobs, again at each return; order and KV are stock's."""

    settings_class = ThunderAgentSettings
    settings: ThunderAgentSettings
    tick_s = 5.0

    def __init__(self, settings: Settings, pool_tokens: int) -> None:
        super().__init__(settings, pool_tokens)
        self.max_wait_s = self.settings.force_resume_s
        self.is_paper = self.settings.rules == "paper"
        self.paused: set[str] = set()
        self.marked: set[str] = set()
        """Jobs that are paused when their turn ends."""

    def context_of(self, job: Job) -> int:
        prompts = [turn.num_prompt_tokens for turn in job.live.values()]
        buffer = 0 if self.is_paper else BUFFER_TOKENS
        return max([job.context_tokens, *prompts]) + buffer

    def weight_of(self, job: Job) -> float:
        """Share of the context that counts; an idle one's halves each second, in the paper."""
        if job.live or job.finished_s is None or not self.is_paper:
            return 1.0
        return float(0.5 ** min(self.engine.now_s - job.finished_s, 1000.0))

    def active(self) -> list[Job]:
        left_out = self.paused | self.marked
        return [job for job in self.engine.jobs if job.has_run and job.job_id not in left_out]

    def used_tokens(self) -> float:
        return sum(self.weight_of(job) * self.context_of(job) for job in self.active())

    def tick(self) -> bool:
        for job in self.engine.jobs:  # let in after the limit, or because nothing ran
            if any(turn.admitted_s is not None for turn in job.live.values()):
                self.paused.discard(job.job_id)
        if not self.is_paper:
            self.resume()
        if self.used_tokens() > self.pool_tokens:
            self.pause()
        elif self.is_paper:
            self.resume()
        return False

    def pause(self) -> None:
        """Pause the idle, then mark the served, each the smallest first, until the rest fits."""
        used_tokens = self.used_tokens()
        for job in sorted(self.active(), key=lambda job: (bool(job.live), self.context_of(job))):
            if used_tokens <= self.pool_tokens:
                return
            used_tokens -= self.weight_of(job) * self.context_of(job)
            (self.marked if job.live else self.paused).add(job.job_id)

    def resume(self) -> None:
        """Resume those that wait, then the idle, each the smallest first, while they fit."""
        used_tokens = self.used_tokens()
        paused = [job for job in self.engine.jobs if job.job_id in self.paused]
        for job in sorted(paused, key=lambda job: (not job.live, self.context_of(job))):
            used_tokens += self.context_of(job)
            if used_tokens > self.pool_tokens:
                return
            self.paused.discard(job.job_id)

    def why_wait(self, turn: Turn) -> str | None:
        return "its job is paused" if turn.job.job_id in self.paused else None

    def why_hold_back(self, request: AdmissionRequest) -> str | None:
        turn, engine = request.turn, self.engine
        if turn is None or engine.now_s - turn.arrived_s >= self.max_wait_s:
            return None
        if any(other.job.job_id in self.paused for other in engine.turns):
            return "a paused job's turn waits"
        in_use = (request.num_blocks - request.free_blocks) * engine.block_tokens
        needed = max(self.used_tokens(), in_use) + self.context_of(turn.job)
        return "it does not fit" if needed > self.pool_tokens else None

    def turn_finished(self, turn: Turn, served_s: float) -> None:
        if turn.job.job_id in self.marked and not turn.job.live:
            self.marked.discard(turn.job.job_id)
            self.paused.add(turn.job.job_id)

    def job_ended(self, job: Job) -> None:
        self.paused.discard(job.job_id)
        self.marked.discard(job.job_id)
