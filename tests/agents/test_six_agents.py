"""Facts about what the six agents' example says of two runs, made by hand; no server is started."""

from pathlib import Path

import pytest
import six_agents

from agentkv.evals.commands.bench import read_plan
from tests.evals.made_runs import job, run, turn


def test_both_policies_stand_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mean job and share of prompt tokens are those of the runs."""
    # a job of two turns: 100 and 200 tokens, of which `hits` were in the cache
    runs = [
        run(job("a", ended_s=seconds, turns=(turn(0), turn(1, cached_tokens=hits))), policy=policy)
        for policy, seconds, hits in (("fcfs", 86.0, 30), ("agentkv", 62.0, 150))
    ]
    six_agents.show(runs, tmp_path)
    assert (tmp_path / "jobs.svg").exists()
    text = capsys.readouterr().out
    assert "stock vLLM: mean job 86 s, slowest 86 s, 10% of prompt tokens from the cache" in text
    assert "mean job 86 s -> 62 s, 10% -> 50% of prompt tokens from the cache" in text


def test_all_six_want_more_than_the_memory_has() -> None:
    """Six contexts fill the pool twice; each tool takes 1 to 5 s."""
    _, plan = read_plan(six_agents.FLAGS)
    jobs = plan.workload.jobs
    blocks = int(plan.server_flags[plan.server_flags.index("--num-gpu-blocks-override") + 1])
    assert sum(each.context_tokens for each in jobs) > 2 * blocks * 32
    assert [len(each.turns) for each in jobs] == [7] * 6
    assert all(1.0 <= turn.tool_s <= 5.0 for each in jobs for turn in each.turns[:-1])
