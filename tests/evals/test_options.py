"""The flags that describe a workload."""

import argparse
from typing import Any

import pytest

from agentkv.errors import InputError
from agentkv.evals.options import add_workload_options, fill_in, workload_of
from agentkv.evals.workload.plans import Workload

DEFAULTS = {"jps": 1.0, "jobs": 60}


def parse(*flags: str, defaults: dict[str, Any] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_workload_options(parser)
    options = parser.parse_args(list(flags))
    fill_in(options, DEFAULTS if defaults is None else defaults)
    return options


def made(*flags: str) -> Workload:
    return workload_of(parse(*flags))


def test_defaults_yield_to_the_other_way_of_saying_it() -> None:
    """--concurrency suppresses a default rate, and --jps a default number at once."""
    assert parse().jps == 1.0
    assert parse().jobs == 60
    assert parse("--concurrency", "2", "--jobs", "5").jps is None
    closed = {"concurrency": 6, "jobs": 12}
    assert parse("--jps", "2", defaults=closed).concurrency is None


def test_two_loads_are_one_too_many() -> None:
    """Flags that contradict each other are refused: they would stand in tables and figures."""
    with pytest.raises(InputError, match="give one of them"):
        made("--concurrency", "2", "--jps", "3", "--jobs", "3")
