"""One answer out of those of several data-parallel engines; one engine's answer stays as it is.

Knows the shape of each operation's answer, nothing about how it was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Answer = dict[str, Any]


def merge_info(answers: Sequence[Answer]) -> Answer:
    """The first engine's answer, with the blocks of all and the number of engines."""
    num_blocks = sum(answer["num_blocks"] for answer in answers)
    return {**answers[0], "num_blocks": num_blocks, "num_engines": len(answers)}


def merge_stats(answers: Sequence[Answer]) -> Answer:
    """Whole numbers are counts and add up; fractions are shares and means and are averaged.

    A name that starts with `max_` keeps the largest; what is true of one engine is true; what is
    no number is the first engine's.
    """
    if len(answers) == 1:
        return answers[0]
    merged: Answer = {}
    for name in {name: None for answer in answers for name in answer}:
        values = [answer[name] for answer in answers if name in answer]
        if all(isinstance(value, dict) for value in values):
            merged[name] = merge_stats(values)
        elif all(isinstance(value, bool) for value in values):
            merged[name] = any(values)
        elif not all(isinstance(value, int | float) for value in values):
            merged[name] = values[0]
        elif name.startswith("max_"):
            merged[name] = max(values)
        else:
            is_count = all(isinstance(value, int) for value in values)
            merged[name] = sum(values) if is_count else sum(values) / len(values)
    return merged


def merge_jobs(answers: Sequence[Sequence[Answer]]) -> list[Answer]:
    """All jobs; one that is known to several engines appears once for each, with its engine."""
    if len(answers) == 1:
        return list(answers[0])
    return [{**job, "engine": rank} for rank, jobs in enumerate(answers) for job in jobs]


def merge_job(answers: Sequence[Answer | None]) -> Answer | None:
    """The job on the engine that served most of its turns; None if no engine knows it."""
    known = [(rank, job) for rank, job in enumerate(answers) if job is not None]
    if not known:
        return None
    rank, job = max(known, key=lambda entry: entry[1].get("turns", 0))
    return job if len(answers) == 1 else {**job, "engine": rank}


def merge_release(answers: Sequence[Answer | None]) -> Answer | None:
    """What was freed on all engines together; None if no engine knows the job."""
    known = [answer for answer in answers if answer is not None]
    if not known:
        return None
    return {**known[0], "freed_blocks": sum(answer["freed_blocks"] for answer in known)}


def merge_timestamps(answers: Sequence[Answer]) -> Answer:
    """The record of each job, engine by engine where several served it.

    Times are seconds since each engine's own start, so events of two engines are marked, not mixed.
    """
    if len(answers) == 1:
        return answers[0]
    jobs: dict[str, list[Answer]] = {}
    for rank, answer in enumerate(answers):
        for job_id, events in answer["jobs"].items():
            jobs.setdefault(job_id, []).extend({**event, "engine": rank} for event in events)
    return {"jobs": jobs}
