"""The same jobs under each policy, from their arrival on: queueing, decoding, tools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..load.outcomes import JobOutcome, TurnOutcome
from .conditions import conditions
from .loads import panel_title
from .runs import Group, Run
from .style import FigureError, in_order
from .timeline import WIDTH_IN, Lane, Mark, Span, draw_lanes

_SHARES = (0.5, 0.9, 0.1, 1.0)
"""Jobs shown, while there is room: at these places when all are ordered by how long they took."""
_MAX_LANES = 18
_LOST_SHARE = 0.5
"""A turn that finds less than this share of the context before it is marked."""
_MIN_LOST_TOKENS = 256
"""Unless the loss is as small as two of the largest blocks (128 on CPU): a block must be full."""


def draw_run_timeline(group: Group, path: Path, *, baseline: str) -> Path:
    """Under the heaviest load; the jobs are picked by their durations under the baseline."""
    runs = _one_run_each(group.at(group.loads[-1] if group.loads else None).runs)
    leading = (
        runs[0]
        if baseline not in [run.policy for run in runs]
        else next(run for run in runs if run.policy == baseline)
    )
    shares = sorted(_SHARES[: max(1, _MAX_LANES // len(runs))])
    lanes = [
        _lane(run, job)
        for job_id in _picked(leading, runs, shares)
        for run in runs
        for job in run.outcome.jobs
        if job.job_id == job_id
    ]
    if not lanes:
        raise FigureError(f"{path.name}: no job is done under every policy")
    title = f"The same jobs under each policy, {panel_title(group.at(runs[0].load))}"
    places = ", ".join(f"{share:.0%}" for share in shares)
    picked = f"jobs at {places} when ordered by duration under {leading.policy}"
    return draw_lanes(
        lanes,
        path,
        title=title,
        conditions=conditions(runs, WIDTH_IN, picked),
        x_label="seconds from the job's arrival",
    )


def _one_run_each(runs: Sequence[Run]) -> list[Run]:
    """The first run of each policy, of the same jobs where there are several."""
    wanted = runs[0].pair
    first = {run.policy: run for run in reversed(runs)}
    first.update({run.policy: run for run in runs if run.pair == wanted})
    return [first[policy] for policy in in_order(list(first))]


def _picked(leading: Run, runs: Sequence[Run], shares: Sequence[float]) -> list[str]:
    done = [{job.job_id for job in run.outcome.jobs if job.status == "done"} for run in runs]
    common = set.intersection(*done)
    ordered = sorted(
        (job for job in leading.outcome.jobs if job.job_id in common),
        key=lambda job: (job.duration_s, job.job_id),
    )
    places = [round(share * (len(ordered) - 1)) for share in shares] if ordered else []
    return list(dict.fromkeys(ordered[place].job_id for place in places))


def _lane(run: Run, job: JobOutcome) -> Lane:
    spans = [span for turn in job.turns for span in _spans(turn, job.arrived_s)]
    return Lane(f"{job.job_id}\n{run.policy}", tuple(spans), tuple(_marks(job)), job.job_id)


def _spans(turn: TurnOutcome, zero_s: float) -> Iterator[Span]:
    found = f"{turn.cached_tokens / turn.prompt_tokens:.0%}" if turn.prompt_tokens else ""
    first_s = turn.sent_s + turn.to_first_token_s
    yield Span("prefill", turn.sent_s - zero_s, first_s - zero_s, found if turn.turn else "")
    yield Span("decode", first_s - zero_s, turn.ended_s - zero_s)
    if turn.tool_s:
        yield Span("tool", turn.ended_s - zero_s, turn.ended_s + turn.tool_s - zero_s)


def _marks(job: JobOutcome) -> Iterator[Mark]:
    context_tokens = 0
    for turn in job.turns:
        lost_tokens = context_tokens - turn.cached_tokens
        if lost_tokens > max(_MIN_LOST_TOKENS, (1 - _LOST_SHARE) * context_tokens):
            yield Mark("lost", turn.sent_s - job.arrived_s)
        if turn.error is not None:
            yield Mark("failed", turn.ended_s - job.arrived_s)
        context_tokens = turn.prompt_tokens + turn.output_tokens
