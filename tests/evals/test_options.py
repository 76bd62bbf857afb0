"""The flags that describe a workload."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from agentkv.errors import InputError
from agentkv.evals.options import add_workload_options, fill_in, workload_of
from agentkv.evals.workload.plans import Workload
from tests.evals.event_log.rows import arrival, finish, start, write_record

DEFAULTS = {"jps": 1.0, "duration": 60.0}


def parse(*flags: str, defaults: dict[str, Any] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_workload_options(parser)
    options = parser.parse_args(list(flags))
    fill_in(options, DEFAULTS if defaults is None else defaults)
    return options


def made(*flags: str) -> Workload:
    return workload_of(parse(*flags))


def test_defaults_yield_to_the_other_way_of_saying_it() -> None:
    """--jobs suppresses a default duration, and --concurrency a rate."""
    assert parse().jps == 1.0
    assert parse().duration == 60.0
    assert parse("--jobs", "5").duration is None
    assert parse("--concurrency", "2", "--jobs", "5").jps is None
    closed = {"concurrency": 6, "jobs": 12}
    assert parse("--jps", "2", defaults=closed).concurrency is None


@pytest.mark.parametrize(
    ("flags", "arrivals_s"),
    [
        ((), [0.0, 2.5]),
        (("--jobs", "1"), [0.0]),
        (("--duration", "2"), [0.0]),
        (("--concurrency", "2", "--jobs", "3"), [0.0] * 3),
    ],
)
def test_an_event_log_is_played_as_recorded_unless_told_otherwise(
    flags: tuple[str, ...], arrivals_s: list[float], tmp_path: Path
) -> None:
    """Neither the default rate nor the default number of jobs applies to a log."""
    log = write_record(
        tmp_path / "log.jsonl",
        a=[arrival(4.0, 1, 50), start(4.0, 50, 0, 0), finish(5.0, 1, 64)],
        b=[arrival(6.5, 1, 50), start(6.5, 50, 0, 0), finish(7.5, 1, 64)],
    )
    workload = made("--trace", str(log), *flags)
    assert [job.arrival_s for job in workload.jobs] == arrivals_s


def test_two_loads_are_one_too_many() -> None:
    """Flags that contradict each other are refused: they would stand in tables and figures."""
    with pytest.raises(InputError, match="give one of them"):
        made("--concurrency", "2", "--jps", "3", "--jobs", "3")
