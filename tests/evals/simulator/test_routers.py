"""Each router's rule, on what a router can know."""

from __future__ import annotations

import pytest

from agentkv.evals.simulator.routers import (
    EngineView,
    LeastLoaded,
    PrefixAware,
    RoundRobin,
    RoutedRequest,
    Router,
    Sticky,
    StickySpill,
)
from agentkv.evals.workload.plans import Prefix
from agentkv.integrations.vllm.telemetry.load_reports import EngineReport

PREFILL = (0.0, 0.001, 0.0)  # 1 ms a token


def engines(*num_in_flight: int) -> list[EngineView]:
    return [
        EngineView(rank, 1000, {str(number): None for number in range(count)})
        for rank, count in enumerate(num_in_flight)
    ]


def turn(
    job: str | None, num_tokens: int = 100, context: str = "", **more: object
) -> RoutedRequest:
    return RoutedRequest(context or job or "", job, more.get("parent"), num_tokens)  # type: ignore[arg-type]


def test_round_robin_skips_an_engine_that_is_down() -> None:
    """Requests and signals go round the engines that are up."""
    router, up = RoundRobin(), engines(0, 9, 0)
    assert [router.choose(turn("a"), up, 0.0) for _ in range(4)] == [0, 1, 2, 0]
    assert router.choose_for_signal("a", up) == 1
    assert [router.choose(turn("a"), [up[0], up[2]], 0.0) for _ in range(3)] == [2, 0, 2]


def test_least_loaded_takes_equals_in_turn() -> None:
    """The fewest requests under way decide, and equal engines take turns."""
    router = LeastLoaded()
    assert [router.choose(turn("a"), engines(1, 0, 0), 0.0) for _ in range(3)] == [1, 2, 1]


@pytest.mark.parametrize("router", [Sticky(), StickySpill()])
def test_a_job_stays_and_moves_when_its_engine_is_down(router: Router) -> None:
    """Turns and signals of a job stay together; after a failure they stay with the next engine."""
    up = engines(5, 0, 5)
    assert router.choose(turn("a"), up, 0.0) == 1
    up = engines(0, 5, 3)
    assert router.choose(turn("a"), up, 1.0) == router.choose_for_signal("a", up) == 1
    assert router.choose(turn("a"), [up[0], up[2]], 2.0) == 0
    assert router.choose(turn("a"), engines(9, 0, 0), 3.0) == 0


@pytest.mark.parametrize("router", [Sticky(), StickySpill()])
def test_requests_without_a_job_go_by_load(router: Router) -> None:
    """A client that names no job is spread by load, turn for turn."""
    assert router.choose(turn(None), engines(1, 0), 0.0) == 1
    assert router.choose(turn(None), engines(0, 1), 0.0) == 0


def test_sticky_spill_moves_a_job_if_that_is_faster() -> None:
    """A turn leaves a queue for the least loaded engine when a prefill there is faster."""
    router, up = StickySpill(), engines(0, 1)
    assert router.choose(turn("a"), up, 0.0) == 0
    up = engines(5, 1)
    up[0].num_waiting = 3
    for wait_s, rank in ((0.15, 0), (0.25, 1)):
        for view, wait in zip(up, (wait_s, 0.0), strict=True):
            view.report = EngineReport(wait, PREFILL, 1.0)
        assert router.choose(turn("a"), up, 1.0) == rank
    assert router.choose(turn("a"), engines(0, 9), 2.0) == 1


def test_sticky_spill_starts_a_sub_agent_with_its_parent() -> None:
    """A sub-agent starts on its parent's engine if nobody waits there."""
    router, up = StickySpill(), engines(0, 1)
    assert router.choose(turn("parent"), up, 0.0) == 0
    up = engines(5, 0)
    assert router.choose(turn("child", parent="parent"), up, 0.0) == 0
    up[0].num_waiting = 1
    assert router.choose(turn("other", parent="parent"), up, 0.0) == 1


def test_prefix_aware_follows_the_prompt_until_load_differs_too_much() -> None:
    """Half of the prompt decides, unless one engine has 33 requests more than another."""
    router = PrefixAware()
    assert router.choose(turn(None, 100, "chat"), engines(0, 1), 0.0) == 0
    assert router.choose(turn(None, 150, "chat"), engines(5, 1), 0.0) == 0
    assert router.choose(turn(None, 400, "chat"), engines(5, 1), 0.0) == 1
    assert router.choose(turn(None, 410, "chat"), engines(0, 33), 0.0) == 0


def test_prefix_aware_knows_shared_prefixes_and_forgets_the_oldest() -> None:
    """A new job follows its shared prefix; contexts beyond the pool's size are forgotten."""
    router, prefixes = PrefixAware(), (Prefix("system", 90),)
    first = RoutedRequest("a", None, None, 100, prefixes)
    assert router.choose(first, engines(0, 1), 0.0) == 0
    assert router.choose(RoutedRequest("b", None, None, 100, prefixes), engines(1, 0), 0.0) == 0
    assert router.choose(RoutedRequest("c", None, None, 100), engines(1, 0), 0.0) == 1
    assert router.choose(RoutedRequest("big", None, None, 990), engines(0, 1), 0.0) == 0
    assert router.choose(first, engines(1, 0), 0.0) == 1
