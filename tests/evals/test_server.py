"""The server under test: its facts, its metrics, and what it says of other servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentkv.errors import AgentKVServerError
from agentkv.evals.server import (
    BlockPool,
    ServerUnderTest,
    Snapshot,
    TurnError,
    parse_block_pool,
    parse_snapshot,
)
from tests.evals.fake_vllm import FakeVllm, answering
from tests.http_front import Answer

PAGE = (Path(__file__).parent / "metrics_continuum.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "counted"),
    [
        ('vllm:num_preemptions_total{engine="0"} 3\nvllm:num_preemptions_total{engine="1"} 4\n', 7),
        ("<html></html>", None),
        ("", None),
    ],
)
def test_preemptions_are_summed_over_engines(page: str, counted: int | None) -> None:
    """A server without vLLM's metrics has no number, and ends no measurement."""
    with (
        answering(lambda path: Answer(200, iter([page.encode()]))) as url,
        ServerUnderTest(url) as server,
    ):
        assert server.preemptions() == counted


@pytest.mark.parametrize("body", [[], {}, "hello", None])
def test_a_server_that_answers_something_else_is_named(body: Any) -> None:
    """A proxy that answers everything alike is refused, route by route, and so is its chat."""
    models = {"data": [{"id": "m", "max_model_len": "long"}]}
    with (
        answering(lambda path: Answer(200, models if "models" in path else body)) as url,
        ServerUnderTest(url) as server,
    ):
        with pytest.raises(AgentKVServerError, match=r"/v1/agentkv/info|no JSON object"):
            server.facts(None)
        with pytest.raises(AgentKVServerError, match="/tokenize gives no tokens"):
            server.vocabulary("m")
        with pytest.raises(TurnError, match="no reply with usage"):
            server.complete({}, job_id="job", is_last_step=False)


# Recorded from vLLM 0.32.0 under continuum after the bash agent's tour; other series are left out.
STOCK_PAGE = "\n".join(line for line in PAGE.splitlines() if "agentkv:" not in line) + "\n"


def test_a_page_is_read() -> None:
    """Usage, requests, hits and pool are read, which any vLLM server has."""
    assert parse_snapshot(STOCK_PAGE) == Snapshot(
        usage_by_engine={"0": 0.0},
        num_finished=5,
        cached_tokens=1120,
    )
    assert parse_block_pool(STOCK_PAGE) == BlockPool(block_size=32, num_blocks=727)
    two = Snapshot({"0": 25 / 727, "1": 7 / 727}, 0, 0)
    assert two.held_blocks(BlockPool(32, 727)) == 32


def test_a_page_that_lacks_what_is_needed_says_so() -> None:
    """Missing usage, a missing pool and HTML are errors, not guesses."""
    with pytest.raises(AgentKVServerError, match="--disable-log-stats"):
        parse_snapshot("# HELP other Something else.\n# TYPE other gauge\nother 1.0\n")
    with pytest.raises(AgentKVServerError, match="block size"):
        parse_block_pool(STOCK_PAGE.replace('num_gpu_blocks="728"', 'num_gpu_blocks="None"'))
    with pytest.raises(AgentKVServerError, match="Prometheus"):
        parse_snapshot("<html><body>not here</body></html>\n")


def test_silence_means_that_nothing_listens() -> None:
    """A server that listens is not silent, even with errors; one that is gone is named."""
    with FakeVllm() as fake, ServerUnderTest(fake.base_url) as server:
        assert server.silence() is None
    with ServerUnderTest("http://127.0.0.1:9") as server:
        assert "127.0.0.1:9 is gone" in (server.silence() or "")
