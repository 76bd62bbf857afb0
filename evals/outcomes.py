"""What happened to each job of a run, and one flat table of numbers a run.

The same rows and functions for a real server and for the simulator, so the two can be compared.
Knows nothing of files or of how a run was made. Times are seconds since the start of the run;
durations are of jobs that are done, latencies of turns that were answered; a number without a
measurement behind it is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal

from .workload.plans import JobRole

JobStatus = Literal["done", "failed", "cut"]
"""How a job ended: all turns answered, a turn failed, or the run ended first."""


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """One played turn; `turn` counts from 0.

    `ended_s`: the reply was complete, or the turn failed or was cut. `tool_s`: run time of the tool
    after it. `error`: why there is no complete reply, None if there is one. `output_digest`: equal
    for equal outputs, None where outputs mean nothing.
    """

    turn: int
    sent_s: float
    first_token_s: float | None
    ended_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    tool_s: float
    error: str | None = None
    output_digest: str | None = None

    @property
    def to_first_token_s(self) -> float:
        """Queueing and prefill; the whole turn where no token came."""
        return (self.ended_s if self.first_token_s is None else self.first_token_s) - self.sent_s

    @property
    def decode_s(self) -> float:
        """From the first token to the last; 0 where no token came."""
        return 0.0 if self.first_token_s is None else self.ended_s - self.first_token_s

    @property
    def latency_s(self) -> float:
        """From sending the request to the end of the reply."""
        return self.ended_s - self.sent_s


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """One job from its arrival to its end.

    `alone_s` is how long the same job takes with the machine to itself, None where not known.
    """

    job_id: str
    arrived_s: float
    ended_s: float
    status: JobStatus
    turns: tuple[TurnOutcome, ...]
    alone_s: float | None = None
    role: JobRole = "agent"
    client: str = ""

    @property
    def is_whole(self) -> bool:
        """True for an agent's job by itself: neither part of another job nor a conversation."""
        return self.role in ("agent", "sample")

    @property
    def duration_s(self) -> float:
        return self.ended_s - self.arrived_s

    @property
    def parts(self) -> dict[str, float]:
        """The duration taken apart, in seconds; `other_s` is the load generator's own time, and
        pauses."""
        known_s = {
            "to_first_token_s": sum(turn.to_first_token_s for turn in self.turns),
            "decode_s": sum(turn.decode_s for turn in self.turns),
            "tools_s": sum(turn.tool_s for turn in self.turns),
        }
        first_s, decode_s, tools_s = known_s.values()
        return known_s | {"other_s": self.duration_s - first_s - decode_s - tools_s}


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """One policy's run over a workload.

    `workload` is how the workload was made, `server` its counters (of a real server preemptions
    alone), `metadata` commit, versions, seed, config and repeat.
    """

    policy: str
    workload: Mapping[str, Any]
    jobs: tuple[JobOutcome, ...]
    server: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def duration_s(self) -> float:
        """From the first arrival to the end of the last job."""
        if not self.jobs:
            return 0.0
        return max(job.ended_s for job in self.jobs) - min(job.arrived_s for job in self.jobs)


JOB_PARTS = ("to_first_token_s", "decode_s", "tools_s", "other_s")


def mean(values: Sequence[float]) -> float | None:
    return fmean(values) if len(values) else None


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` of the values lie, interpolated linearly."""
    if not len(values):
        return None
    ranked = sorted(values)
    place = share * (len(ranked) - 1)
    below = ranked[int(place)]
    return below + (ranked[min(int(place) + 1, len(ranked) - 1)] - below) * (place % 1.0)


def summarize(run: RunOutcome, deadline_s: float | None = None) -> dict[str, Any]:
    """Everything that tables and figures show of one run.

    Jobs are those of agents: sub-agents are part of them, and conversations have keys of their
    own. All count among the tokens. `done_in_time` is the share of jobs done within `deadline_s`.
    """
    jobs = [job for job in run.jobs if job.is_whole]
    done = [job for job in jobs if job.status == "done"]
    durations_s = [job.duration_s for job in done]
    answered = _answered(job for job in run.jobs if job.role != "chat")
    return {
        "policy": run.policy,
        "jps": run.workload.get("jps"),
        "concurrency": run.workload.get("concurrency"),
        "jobs": len(jobs),
        "completed": len(done),
        "failed": sum(job.status == "failed" for job in jobs),
        "cut": sum(job.status == "cut" for job in jobs),
        "duration_s": run.duration_s,
        "jobs_per_hour": 3600.0 * len(done) / run.duration_s if run.duration_s else None,
        "done_within": [[limit_s, done_within(jobs, limit_s)] for limit_s in _limits_s(done)],
        "done_in_time": None if deadline_s is None else done_within(jobs, deadline_s),
        **describe_durations(durations_s),
        **_slowdowns(done),
        **_times_to_first_token(answered),
        **_tokens(run, answered),
        # the mean job taken apart; the four add up to mean_s
        **{f"mean_{name}": mean([job.parts[name] for job in done]) for name in JOB_PARTS},
        **_by_turn(answered),
        # the names that the reference experiment's result files have
        "avg_duration_s": mean(durations_s),
        "p90_duration_s": quantile(durations_s, 0.9),
        "p95_duration_s": quantile(durations_s, 0.95),
        "job_durations": durations_s,
        **_roles(run),
    }


def done_within(jobs: Sequence[JobOutcome], limit_s: float) -> float | None:
    """Share of all jobs, failed and cut ones among them, that are done within `limit_s`."""
    in_time = sum(job.status == "done" and job.duration_s <= limit_s for job in jobs)
    return in_time / len(jobs) if jobs else None


def _limits_s(done: Sequence[JobOutcome]) -> list[float]:
    """Where the curve of jobs that end in time is given: 1, 2, 5, 10, ... up to the slowest job."""
    steps = [part * 10.0**power for power in range(-1, 6) for part in (1, 2, 5)]
    slowest_s = max((job.duration_s for job in done), default=0.0)
    num_below = sum(step_s < slowest_s for step_s in steps)
    return steps[: num_below + 1] if done else []


def _answered(jobs: Iterable[JobOutcome]) -> list[TurnOutcome]:
    return [turn for job in jobs for turn in job.turns if turn.error is None]


ROLE_KEYS = (
    *("sub_agents", "chats", "chat_turns", "chat_ttft_mean_s", "chat_ttft_p99_s"),
    *("chat_ttft_max_s", "steps", "step_mean_s", "step_max_s", "clients"),
)
"""Keys of a summary that only runs with sub-agents, conversations, steps or clients have."""


def _roles(run: RunOutcome) -> dict[str, Any]:
    """Numbers of sub-agents and conversations, the seconds of each step, and each client's jobs."""
    jobs = run.jobs
    found: dict[str, Any] = {}
    if num_children := sum(job.role == "sub-agent" for job in jobs):
        found["sub_agents"] = num_children
    if chats := [job for job in jobs if job.role == "chat"]:
        waits_s = [turn.to_first_token_s for turn in _answered(chats)]
        described = describe_durations(waits_s)
        found |= {"chats": len(chats), "chat_turns": len(waits_s)}
        found |= {f"chat_ttft_{key}": described[key] for key in ("mean_s", "p99_s", "max_s")}
    if samples := [job for job in jobs if job.role == "sample"]:
        per_step = run.workload.get("jobs_per_step") or run.workload.get("concurrency")
        steps_s = _step_times_s(samples, per_step or len(samples))
        found |= {"steps": len(steps_s), "step_mean_s": mean(steps_s), "step_max_s": max(steps_s)}
    if clients := sorted({job.client for job in jobs if job.client}):
        found["clients"] = {
            name: _describe_client([job for job in jobs if job.client == name and job.is_whole])
            for name in clients
        }
    return found


def _describe_client(jobs: Sequence[JobOutcome]) -> dict[str, Any]:
    durations_s = [job.duration_s for job in jobs if job.status == "done"]
    return {
        "jobs": len(jobs),
        "completed": len(durations_s),
        **describe_durations(durations_s),
    }


def _step_times_s(samples: Sequence[JobOutcome], jobs_per_step: int) -> list[float]:
    """A step ends with its last job; the next one begins at once."""
    ends_s = sorted(job.ended_s for job in samples)
    steps_end_s = ends_s[jobs_per_step - 1 :: jobs_per_step]
    if len(ends_s) % jobs_per_step:
        steps_end_s.append(ends_s[-1])
    begun_s = min(job.arrived_s for job in samples)
    return [end_s - start_s for start_s, end_s in pairwise([begun_s, *steps_end_s])]


def describe_durations(durations_s: Sequence[float]) -> dict[str, float | None]:
    """Mean, quantiles and maximum, in seconds."""
    shares = {"p50_s": 0.5, "p90_s": 0.9, "p95_s": 0.95, "p99_s": 0.99, "max_s": 1.0}
    return {
        "mean_s": mean(durations_s),
        **{name: quantile(durations_s, share) for name, share in shares.items()},
    }


def _slowdowns(done: Sequence[JobOutcome]) -> dict[str, float | None]:
    """Durations over the same job's duration alone; None unless that is known of every job."""
    slowdowns = [job.duration_s / job.alone_s for job in done if job.alone_s]
    if len(slowdowns) < len(done):
        slowdowns = []
    return {"slowdown_p99": quantile(slowdowns, 0.99), "slowdown_max": quantile(slowdowns, 1.0)}


def _times_to_first_token(answered: Sequence[TurnOutcome]) -> dict[str, float | None]:
    first = [turn.to_first_token_s for turn in answered if turn.turn == 0]
    continuing = [turn.to_first_token_s for turn in answered if turn.turn > 0]
    found = {"ttft_mean_s": mean([*first, *continuing])}
    for name, times_s in (("first", first), ("continuing", continuing)):
        described = describe_durations(times_s)
        found |= {f"ttft_{name}_{key}": described[key] for key in ("mean_s", "p99_s", "max_s")}
    return found


def _tokens(run: RunOutcome, answered: Sequence[TurnOutcome]) -> dict[str, Any]:
    """Token counts of all jobs, and the hit rate of the turns given.

    Recomputed tokens are the server's own count where it has one.
    """
    continuing = [turn for turn in answered if turn.turn > 0]
    continuing_prompt_tokens = sum(turn.prompt_tokens for turn in continuing)
    answered = _answered(run.jobs)
    output_tokens = sum(turn.output_tokens for turn in answered)
    recomputed = run.server.get("recomputed_tokens")
    has_rate = continuing_prompt_tokens and run.metadata.get("reports_cached_tokens", True)
    hit_tokens = sum(turn.cached_tokens for turn in continuing)
    return {
        "hit_rate": hit_tokens / continuing_prompt_tokens if has_rate else None,
        "preemptions": run.server.get("preemptions"),
        "recomputed_tokens": _recomputed_tokens(run.jobs) if recomputed is None else recomputed,
        "prompt_tokens": sum(turn.prompt_tokens for turn in answered),
        "cached_tokens": sum(turn.cached_tokens for turn in answered),
        "output_tokens": output_tokens,
        "tokens_per_s": output_tokens / run.duration_s if run.duration_s else None,
    }


def _recomputed_tokens(jobs: Sequence[JobOutcome]) -> int:
    """Tokens that an earlier turn of the job had computed, and a later one computed again.

    The last block of a turn is not full and cannot be found again, so it counts here.
    """
    return sum(
        max(0, earlier.prompt_tokens + earlier.output_tokens - later.cached_tokens)
        for job in jobs
        for earlier, later in pairwise(turn for turn in job.turns if turn.error is None)
    )


def _by_turn(answered: Sequence[TurnOutcome]) -> dict[str, list[float | None]]:
    """A list per number with one entry a turn, up to the last turn that any job had."""
    num_turns = max((turn.turn for turn in answered), default=-1) + 1
    turns: list[list[TurnOutcome]] = [[] for _ in range(num_turns)]
    for turn in answered:
        turns[turn.turn].append(turn)
    return {
        "per_turn_avg_latency_ms": [mean([t.latency_s * 1000.0 for t in same]) for same in turns],
        "per_turn_avg_prompt_tokens": [mean([t.prompt_tokens for t in same]) for same in turns],
        "per_turn_avg_cached_tokens": [mean([t.cached_tokens for t in same]) for same in turns],
    }
