"""What `agentkv explain` prints; the reasons: tests/integrations/vllm/watch/test_why.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentkv.cli import main as agentkv
from agentkv.evals.commands.explain import report
from agentkv.integrations.vllm.api import engine_side
from tests.evals.event_log.rows import TWO_TURNS, write_record
from tests.evals.trace_rows import write_lines
from tests.integrations.vllm.harness import Engine
from tests.stepped_engine import prompt_of


@pytest.mark.parametrize("block_tokens", [16, 640])
def test_a_large_unit_of_hits_is_named(block_tokens: int) -> None:
    """A hybrid model's turn finds nothing behind its last unit, under any policy."""
    engine = Engine(num_blocks=100, num_state_groups=1, block_tokens=block_tokens)
    engine.turn(prompt_of(700), job_id="a")
    (job,) = engine_side.explain(engine.scheduler, None, ["a"])
    assert ("hits in units of 640 tokens" in report(job)) == (block_tokens == 640)


def line(job_id: str, turn: int, prompt: int, **more: Any) -> dict[str, Any]:
    tokens = {"prompt_tokens": prompt, "output_tokens": 50}
    return {"job_id": job_id, "turn": turn, **tokens, "command": "ls", "tool_s": 1.0} | more


@pytest.mark.parametrize(
    ("last", "status", "words"),
    [
        ({"prompt_tokens": 300}, 0, "0 of 2 jobs computed tokens twice"),
        ({"kept_tokens": 120, "prompt_tokens": 300}, 1, "keeps 120 of 230 tokens of the context"),
        (
            {"prompt_tokens": 150},
            1,
            "keeps at most 150 of 230 tokens of the context before",
        ),
    ],
    ids=["whole", "broken", "compacted"],
)
def test_a_log_says_which_prompts_broke(
    last: dict[str, Any],
    status: int,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By counts alone: what each turn could have found, and a status for CI."""
    lines = [line("a", 0, 100), line("a", 1, 180), line("a", 2, 0, **last), line("b", 0, 90)]
    path = str(write_lines(tmp_path / "log.jsonl", lines))
    assert agentkv(["explain", path]) == status
    shown = capsys.readouterr().out
    assert words in shown
    assert "of 1 the log has counts alone" in shown
    assert agentkv(["explain", path, "--json"]) == status
    found = json.loads(capsys.readouterr().out)
    assert [job["job_id"] for job in found["jobs"]] == ["a"] * status
    assert found["num_jobs"] == 2


def test_a_servers_own_log_says_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The misses that the server noted, as it would have answered itself."""
    path = write_record(tmp_path / "scheduler_timestamps.jsonl", job=TWO_TURNS)
    assert agentkv(["explain", str(path)]) == 1
    text = capsys.readouterr().out
    assert "computed twice: 32 pressure" in text
    assert "turn 2: found 80 of 112 tokens\n      another request took the memory" in text
