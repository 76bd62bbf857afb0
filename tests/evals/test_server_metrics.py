"""Facts about reading a vLLM server's `/metrics` page."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentkv.evals.server_metrics import (
    BlockPool,
    PageError,
    Snapshot,
    parse_block_pool,
    parse_snapshot,
)

# Recorded from vLLM 0.32.0 under continuum after the bash agent's tour; other series are left out.
PAGE = (Path(__file__).parent / "metrics_continuum.txt").read_text(encoding="utf-8")
STOCK_PAGE = "\n".join(line for line in PAGE.splitlines() if "agentkv:" not in line) + "\n"


def test_a_page_of_a_server_with_the_plugin_is_read_whole() -> None:
    """Usage, requests, hits and pins of a recorded page come out as numbers."""
    assert parse_snapshot(PAGE) == Snapshot(
        usage_by_engine={"0": 0.0},
        num_unfinished=0,
        num_finished=5,
        cached_tokens=1120,
        pinned_blocks=0,
        num_pins=4,
        pin_ends={
            "returned": 4,
            "expired": 0,
            "pressure": 0,
            "last_step": 0,
            "released": 0,
            "aborted": 0,
            "reset": 0,
        },
    )


def test_a_page_of_a_stock_server_has_no_pins() -> None:
    """Without the plugin's series pinned blocks are unknown, which is not zero."""
    snapshot = parse_snapshot(STOCK_PAGE)
    assert (snapshot.pinned_blocks, snapshot.num_pins, snapshot.pin_ends) == (None, 0, {})


def test_the_pool_is_told_by_vllm_itself() -> None:
    """Block size and number of blocks stand on a stock page; the null block is not counted."""
    assert parse_block_pool(STOCK_PAGE) == BlockPool(block_size=32, num_blocks=727)


def test_held_blocks_follow_from_the_usage() -> None:
    """usage = 1 - free / (blocks - 1), for each engine by itself."""
    page = PAGE.replace(
        'vllm:kv_cache_usage_perc{engine="0",model_name="demo"} 0.0',
        f'vllm:kv_cache_usage_perc{{engine="0",model_name="demo"}} {25 / 727}\n'
        f'vllm:kv_cache_usage_perc{{engine="1",model_name="demo"}} {7 / 727}',
    )
    assert parse_snapshot(page).held_blocks(BlockPool(32, 727)) == 32


def test_a_page_without_usage_says_what_may_be_wrong() -> None:
    """A server that keeps no statistics is named as such."""
    with pytest.raises(PageError, match="--disable-log-stats"):
        parse_snapshot("# HELP other Something else.\n# TYPE other gauge\nother 1.0\n")


def test_a_page_without_the_pool_says_so() -> None:
    """Missing or unknown numbers of blocks are an error, not a guess."""
    with pytest.raises(PageError, match="block size"):
        parse_block_pool(STOCK_PAGE.replace('num_gpu_blocks="728"', 'num_gpu_blocks="None"'))


def test_a_page_that_is_no_metrics_page_is_an_error() -> None:
    """HTML from some other server does not pass for readings."""
    with pytest.raises(PageError, match="Prometheus"):
        parse_snapshot("<html><body>not here</body></html>\n")
