"""A job whose tool outlasts a learned time is paused; the one that finished last resumes first.

Source: Progress-TTL of AgentInfer (openJiuwen-ai/agent-infer, scheduling design @3749fd0) and of
vllm-project/router @a77107f (PR 286). A finished turn arms a TTL: the d that maximises
P(T < d) M - E[T; T < d] - d P(T >= d) over a log-normal fit of the times between turns, M being
what a lost context costs; 0 before 100 times are known. When it fires the job is paused, as is an
idle one with 14 turns since its resume if others wait. While contexts exceed memory more jobs are
paused, by the time since they resumed x max(0.5, sqrt(mean context / context)), served ones when
their turn ends. Waiting jobs are all tried: overdue ones, then by the client's priority, then the
most recently finished; at most 64 enter, if context, 100 tokens and the expected growth fit.

The limit of forced resume, which asks for no room: `force_resume_s`, 1,800 s as in AgentInfer's
older configuration; null for the adaptive one, 3 x turns ahead / rate within 30 and 300 s.
Left open: M is 1.85 x the recomputing that the engine has learned; the rate is that of turns ended
in the last 60 s. Growth is its mean, for min(14, max(1, 2 x turns between pauses)) turns.
Not in it: privilege, the exception for a batch that gains, modes, yielding once, replicas.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import NormalDist, fmean, pstdev

from pydantic import Field

from agentkv.policies import TTL, AdmissionRequest, Job, Policy, RestoreCost, Settings, Turn

BUFFER_TOKENS, MAX_ACTIVE, MAX_TURNS, MIN_GAPS = 100, 64, 14, 100


class ProgressTTLSettings(Settings):
    force_resume_s: float | None = Field(1800.0, gt=0)
    """Seconds after which a turn is let in all the same; null: from the queue and its rate."""


def best_ttl_s(gaps_s: deque[float], lost_s: float) -> float:
    """The TTL that gains most if a context that is lost costs `lost_s`."""
    logs = [math.log(max(gap_s, 1e-3)) for gap_s in gaps_s]
    mean, spread = fmean(logs), max(pstdev(logs), 1e-3)
    norm, longest_s = NormalDist(), min(10.0, lost_s)

    def gain_s(ttl_s: float) -> float:
        z = (math.log(ttl_s) - mean) / spread if ttl_s else -math.inf
        p_within = norm.cdf(z)
        mean_within_s = math.exp(mean + spread**2 / 2) * norm.cdf(z - spread)
        return p_within * lost_s - mean_within_s - ttl_s * (1 - p_within)

    ratio = max(1.0, longest_s / 0.05)
    return max([0.0, *(0.05 * math.pow(ratio, step / 33) for step in range(34))], key=gain_s)


@dataclass(slots=True)
class Segment:
    """A job since its start, or since it resumed."""

    began_s: float
    num_turns_before: int
    finished_s: float | None = None
    pause_at_s: float = math.inf
    is_marked: bool = False  # paused once its turn ends


class ProgressTTL(Policy):
    """Lets jobs in as far as they fit; KV and order of service are stock's."""

    settings_class = ProgressTTLSettings
    settings: ProgressTTLSettings
    tick_s = 1.0

    def __init__(self, settings: Settings, pool_tokens: int) -> None:
        super().__init__(settings, pool_tokens)
        self.max_wait_s = self.settings.force_resume_s or 300.0
        self.paused: set[str] = set()
        self.segments: dict[str, Segment] = {}
        self.gaps_s: deque[float] = deque(maxlen=MIN_GAPS)
        self._ends_s: deque[float] = deque(maxlen=1000)
        self._growth, self._lengths = deque([0.0], maxlen=1000), deque([1.0], maxlen=100)
        self._lost_s = 0.0

    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        self._lost_s = 1.85 * cost.alone_s  # for the turn that is about to end
        return TTL(0.0, "left to the cache")

    def context_of(self, job: Job) -> int:
        prompts = [turn.num_prompt_tokens for turn in job.live.values()]
        return max([job.context_tokens, *prompts]) + (0 if job.live else BUFFER_TOKENS)

    def segment(self, job: Job) -> Segment:
        return self.segments.setdefault(job.job_id, Segment(self.engine.now_s, job.num_turns))

    def members(self) -> list[Job]:
        return [job for job in self.engine.jobs if job.has_run and job.job_id not in self.paused]

    def fits(self, num_tokens: int) -> bool:
        jobs = self.members()
        target = min(MAX_TURNS, max(1, math.ceil(2 * fmean(self._lengths))))
        served = [job.num_turns - self.segment(job).num_turns_before for job in jobs]
        reserve = fmean(self._growth) * (target + sum(max(0, target - num) for num in served))
        used = sum(map(self.context_of, jobs)) + num_tokens + BUFFER_TOKENS + reserve
        return len(jobs) < MAX_ACTIVE and used <= self.pool_tokens

    def tick(self) -> bool:
        waiting = [turn for turn in self.engine.turns if turn.job.job_id in self.paused]
        for turn in waiting:
            if turn.admitted_s is not None:  # let in after the limit, or because nothing ran
                self.resume(turn.job)
        for job in self.members():
            segment = self.segment(job)
            num_turns = job.num_turns - segment.num_turns_before
            is_served = bool(waiting) and num_turns >= MAX_TURNS
            if not job.live and (self.engine.now_s >= segment.pause_at_s or is_served):
                self._lengths.append(max(1.0, num_turns))
                self.paused.add(job.job_id)
        self.make_room()
        self.let_in()
        return False

    def make_room(self) -> None:
        jobs = [job for job in self.members() if not self.segment(job).is_marked]
        used = sum(map(self.context_of, jobs))
        mean = used / max(1, len(jobs))

        def claim(job: Job) -> float:
            factor = max(0.5, math.sqrt(mean / max(1, self.context_of(job))))
            return (self.segment(job).began_s - self.engine.now_s) * factor

        for job in sorted(jobs, key=claim):
            if used > self.pool_tokens:
                used -= self.context_of(job)
                self.segment(job).is_marked = bool(job.live)
                self.paused |= set() if job.live else {job.job_id}

    def limit_s(self, num_ahead: int) -> float:
        rate = sum(end_s > self.engine.now_s - 60.0 for end_s in self._ends_s) / 60.0
        adaptive_s = min(300.0, max(30.0, 3 * num_ahead / rate if rate else 300.0))
        return self.settings.force_resume_s or adaptive_s

    def let_in(self) -> None:
        """Resume jobs that are overdue or fit, unless a returning turn is still in the queue."""
        turns = [turn for turn in self.engine.turns if turn.admitted_s is None]
        waiting = [turn for turn in turns if turn.job.job_id in self.paused]
        if any(not turn.is_first and turn not in waiting for turn in turns):
            return
        since_s = self.engine.now_s - self.limit_s(len(waiting))
        waiting.sort(key=lambda turn: turn.job.finished_s or 0.0, reverse=True)
        for turn in sorted(waiting, key=lambda turn: (turn.arrived_s > since_s, turn.job.priority)):
            if turn.arrived_s <= since_s or self.fits(turn.num_prompt_tokens):
                self.resume(turn.job)

    def resume(self, job: Job) -> None:
        self.paused.discard(job.job_id)
        finished_s = self.segment(job).finished_s
        self.segments[job.job_id] = Segment(self.engine.now_s, job.num_turns - 1, finished_s)

    def why_wait(self, turn: Turn) -> str | None:
        return "its job is paused" if turn.job.job_id in self.paused else None

    def why_hold_back(self, request: AdmissionRequest) -> str | None:
        turn = request.turn
        if turn is None or self.engine.now_s - turn.arrived_s >= self.max_wait_s:
            return None
        if any(other.job.job_id in self.paused for other in self.engine.turns):
            return "a paused job's turn waits"
        return None if self.fits(turn.num_prompt_tokens) else "it does not fit"

    def turn_finished(self, turn: Turn, served_s: float) -> None:
        segment, now_s = self.segment(turn.job), self.engine.now_s
        if segment.finished_s is not None:
            self.gaps_s.append(turn.arrived_s - segment.finished_s)
            self._growth.append(max(0.0, turn.job.context_tokens - turn.common_tokens))
        is_known = len(self.gaps_s) >= MIN_GAPS and not segment.is_marked
        segment.finished_s = now_s
        segment.pause_at_s = now_s + (best_ttl_s(self.gaps_s, self._lost_s) if is_known else 0.0)
        self._ends_s.append(now_s)

    def job_ended(self, job: Job) -> None:
        self.paused.discard(job.job_id)
        self.segments.pop(job.job_id, None)
