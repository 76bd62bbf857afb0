"""What one graded run comes to: a flat table of numbers, None where nothing was measured."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..summary import mean, quantile
from .errors import SwebenchError
from .eval_results import STATUSES, Verdict
from .report_runs import SwebenchRun

Z_95 = 1.959964
"""Two-sided 95% of the normal distribution."""
ERROR_PREFIX = "error:"
_SHARES = {"p50_s": 0.5, "p90_s": 0.9, "p99_s": 0.99, "max_s": 1.0}


def wilson(successes: int, trials: int) -> tuple[float, float] | None:
    """The 95% interval of a rate; None without trials.

    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference,
    1927 (the score interval, without continuity correction).
    """
    if not trials:
        return None
    rate = successes / trials
    spread = Z_95**2 / trials
    middle = (rate + spread / 2) / (1 + spread)
    half = Z_95 * math.sqrt(rate * (1 - rate) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def summarize(run: SwebenchRun, verdicts: Mapping[str, Verdict] | None) -> dict[str, Any]:
    """Everything that the table and the figure show of one run; durations in seconds.

    Job completion times are of the instances whose agent ended by itself or by a limit, whatever
    its patch is worth; `verdicts` None is a run that was not graded,
    and instances of the run that it lacks are not graded yet.
    """
    rows = [run.rows[name] for name in run.instance_ids if name in run.rows]
    ended = [row for row in rows if is_completed(row)]
    turns = [turn for row in ended for turn in row.get("turns") or []]
    return {
        "instances": len(run.instance_ids),
        **_outcomes(run, verdicts),
        "completed": len(ended),
        "failed": len(rows) - len(ended),
        "not_run": len(run.instance_ids) - len(rows),
        "exit_statuses": dict(Counter(str(row.get("exit_status")) for row in rows).most_common()),
        **_times("jct", [job_s(row) for row in ended]),
        "turns_mean": mean([float(row.get("num_turns") or 0) for row in ended]),
        **_times("turn_llm", _known(turns, "llm_s")),
        **_times("turn_tool", _known(turns, "tool_s")),
        **_by_turn(ended),
        **_tokens(ended),
        **_pins(run.document),
    }


def is_completed(row: Mapping[str, Any]) -> bool:
    """The agent came to an end of its own or to a limit: it did not fail."""
    return not str(row.get("exit_status")).startswith(ERROR_PREFIX) and not row.get("error")


def job_s(row: Mapping[str, Any]) -> float:
    """Job completion time of an instance. Raises SwebenchError if its row does not tell it."""
    try:
        return float(row["end_s"]) - float(row["start_s"])
    except (LookupError, TypeError, ValueError) as error:
        raise SwebenchError(
            f"the row of {row['instance_id']} has no start_s and end_s in seconds"
        ) from error


def _outcomes(run: SwebenchRun, verdicts: Mapping[str, Verdict] | None) -> dict[str, Any]:
    """A pass rate is of all instances of the run, so there is none until all are graded."""
    rates = dict.fromkeys(("pass_rate", "pass_rate_low", "pass_rate_high"))
    if verdicts is None:
        return {**dict.fromkeys(STATUSES), "not_graded": len(run.instance_ids), **rates}
    found = Counter(verdict.status for verdict in verdicts.values())
    num_missing = len(run.instance_ids) - len(verdicts)
    interval = wilson(found["resolved"], len(run.instance_ids))
    if not num_missing and interval is not None:
        rate = found["resolved"] / len(run.instance_ids)
        rates = dict(zip(rates, (rate, *interval), strict=True))
    return {**{status: found[status] for status in STATUSES}, "not_graded": num_missing, **rates}


def _times(name: str, values: Sequence[float]) -> dict[str, float | None]:
    return {
        f"{name}_mean_s": mean(values),
        **{f"{name}_{key}": quantile(values, share) for key, share in _SHARES.items()},
    }


def _known(turns: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    return [float(turn[name]) for turn in turns if turn.get(name) is not None]


def _by_turn(ended: Iterable[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    by_turn: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for row in ended:
        for number, turn in enumerate(row.get("turns") or []):
            by_turn[number].append(turn)
    turns = [by_turn[number] for number in range(len(by_turn))]
    return {
        "per_turn_llm_mean_s": [mean(_known(same, "llm_s")) for same in turns],
        "per_turn_cached_share": [_cached_share(same) for same in turns],
        "per_turn_instances": [float(len(same)) for same in turns],
    }


def _tokens(ended: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The cached share is of turns that continue a job: the first has nothing of its own yet."""
    first: list[Mapping[str, Any]] = []
    continuing: list[Mapping[str, Any]] = []
    for row in ended:
        turns = row.get("turns") or []
        first += turns[:1]
        continuing += turns[1:]
    both = [*first, *continuing]
    return {
        "prompt_tokens": sum(int(turn.get("prompt_tokens") or 0) for turn in both),
        "output_tokens": sum(int(turn.get("output_tokens") or 0) for turn in both),
        "cached_share": _cached_share(continuing),
        "cached_share_first": _cached_share(first),
    }


def _cached_share(turns: Iterable[Mapping[str, Any]]) -> float | None:
    """Of the turns for which the server told it; None if it told none."""
    told = [turn for turn in turns if turn.get("cached_tokens") is not None]
    prompt_tokens = sum(int(turn.get("prompt_tokens") or 0) for turn in told)
    cached_tokens = sum(int(turn["cached_tokens"]) for turn in told)
    return cached_tokens / prompt_tokens if prompt_tokens else None


def _pins(document: Mapping[str, Any]) -> dict[str, Any]:
    """Totals of the plugin, where run.json has its stats: None under a stock policy."""
    stats = document.get("server_stats") or {}
    by_speed = stats.get("pins_total")
    return {
        "pins": None if by_speed is None else sum(by_speed.values()),
        "pin_ends": stats.get("pin_ends_total"),
        "preemptions": stats.get("preemptions_total"),
    }
