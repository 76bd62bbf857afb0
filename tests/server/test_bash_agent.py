"""Facts about the example agent on a real server; what the model says is never among them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import bash_agent
import httpx
import pytest

from agentkv.server.process import ServerProcess

pytestmark = pytest.mark.server

EXAMPLE = Path(__file__).parents[2] / "examples" / "bash_agent.py"
BLOCK_SIZE = 32


def play(
    base_url: str, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, dict[str, Any], str]:
    """Exit status, JSON document and the text on standard error."""
    status = bash_agent.main(["--base-url", base_url, "--json", *options])
    captured = capsys.readouterr()
    return status, json.loads(captured.out), captured.err


def test_the_tour_is_one_job_of_five_turns(
    demo_server: ServerProcess,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The tour's five turns find their context cached and pinned; the last one leaves nothing."""
    status, document, text = play(demo_server.base_url, capsys)
    turns = document["turns"]
    assert status == 0, text
    assert [turn["user_prompt"] for turn in turns] == list(bash_agent.TOUR)
    assert document["job"]["turns"] == 5
    for earlier, later in pairwise(turns):
        context_tokens = earlier["prompt_tokens"] + earlier["output_tokens"]
        assert later["prompt_tokens"] > context_tokens
        assert later["cached_tokens"] >= earlier["prompt_tokens"] - BLOCK_SIZE
        assert later["cached_tokens"] > earlier["cached_tokens"]
    routes = f"{demo_server.base_url}/agentkv"
    job_id = document["job"]["job_id"]
    events = httpx.get(f"{routes}/timestamps", timeout=30).json()["jobs"][job_id]
    reasons = [event.get("reason") for event in events if event["event"] == "unpinned"]
    assert reasons == ["returned"] * 4
    assert httpx.get(f"{routes}/stats", timeout=30).json()["pinned_blocks"] == 0


@pytest.mark.long
def test_with_a_tier_a_lost_cache_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    """Each later turn of the tour finds its context although another prompt took the cache."""
    status = bash_agent.main(["--tier", "--json"])
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert status == 0, captured.err
    for earlier, later in pairwise(document["turns"]):
        assert later["cached_tokens"] >= earlier["prompt_tokens"] - BLOCK_SIZE
    assert document["loaded_tokens"] == sum(turn["cached_tokens"] for turn in document["turns"])


def test_a_limit_ends_the_tour_early(
    demo_server: ServerProcess,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`--max-turns` is kept."""
    status, document, _ = play(demo_server.base_url, capsys, "--max-turns", "2")
    assert (status, len(document["turns"])) == (0, 2)


def test_a_task_goes_on_until_no_tool_is_called(
    demo_server: ServerProcess,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A free task takes as many turns as the model calls tools, up to the limit."""
    options = ("--task", "List the files with ls.", "--max-turns", "3")
    status, document, text = play(demo_server.base_url, capsys, *options)
    turns = document["turns"]
    assert status == 0, text
    assert [turn["user_prompt"] for turn in turns] == ["List the files with ls.", "", ""][
        : len(turns)
    ]
    assert all(turn["command"] is not None for turn in turns[:-1])
    assert len(turns) == 3 or turns[-1]["command"] is None


def test_a_wrong_model_is_named_with_the_right_ones(
    demo_server: ServerProcess,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Status 2 before any turn."""
    arguments = ["--base-url", demo_server.base_url, "--model", "no-such-model"]
    assert bash_agent.main(arguments) == 2
    assert "no model 'no-such-model'; the server has demo" in capsys.readouterr().err
