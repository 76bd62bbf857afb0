"""How many jobs at once a server carries, and in which units."""

from __future__ import annotations

import json
import math

import pytest

from agentkv import cli
from agentkv.evals.simulator.alone import LoadPoint, find_knee, knee_of


@pytest.mark.parametrize("limit", [0, 1, 7, 40, 1000, 10_000])
@pytest.mark.parametrize("start", [1, 30])
def test_the_knee_is_found_within_a_tenth(limit: int, start: int) -> None:
    """From any start, in about twice the logarithm of the load; none if not one job is carried."""
    played = []

    def play(at_once: int) -> LoadPoint:
        played.append(at_once)
        return LoadPoint(at_once, 1.0 if at_once <= limit else 0.5, None, None, None, 60.0, 0.0)

    knee = knee_of(find_knee(start, play))
    assert len(played) == len(set(played)) <= 7 + 2 * abs(math.log2(max(1, limit) / start))
    if limit == 0:
        assert knee is None
    elif limit <= 4096:
        assert knee is not None
        assert knee.at_once <= limit <= knee.at_once + max(1.0, 0.1 * knee.at_once)


def test_the_command_says_how_many_jobs_a_gpu_carries(capsys: pytest.CaptureFixture[str]) -> None:
    """A curve of jobs an hour for each policy, its knee, and a sentence; a load is refused."""
    flags = [
        "--gpu",
        "rtx-5090",
        "--workload",
        "bfcl",
        "--blocks",
        "400",
        "--jobs",
        "20",
        "--turns",
        "4",
        "--ttft",
        "0.5",
    ]
    assert cli.main(["simulate", *flags, "--knee"]) == 0
    *_, sentence, document = capsys.readouterr().out.splitlines()
    found = json.loads(document)["policies"]
    for name in ("fcfs", "agentkv"):
        curve, knee = found[name]["curve"], found[name]["knee"]
        assert knee in curve
        assert knee["in_time"] >= 0.9 > curve[-1]["in_time"]
        assert f"{knee['at_once']} under {name} ({knee['jobs_per_hour_gpu']:.0f} jobs" in sentence
        cost = knee["gpu_hours_per_1000_jobs"] * knee["jobs_per_hour_gpu"]
        assert cost == pytest.approx(1000.0)
    assert cli.main(["simulate", *flags, "--knee", "--jps", "1"]) == 2
    assert "leave out --jps" in capsys.readouterr().err
