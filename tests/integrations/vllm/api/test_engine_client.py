"""Statistics of several engines become one answer, and feedback waits for no step."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector

from agentkv.integrations.vllm.api import engine_client
from agentkv.integrations.vllm.api.engine_client import EngineLink, end_streams_with, merge_stats
from tests.integrations.vllm.api.fake_engine import FakeEngineClient

ONE = {
    "pins_total": {"none": 2},
    "ttft_seconds_total": {"later": 0.5},
    "kv_cache_usage": 0.25,
    "learned": {"eta": None, "prefill_reload_s": [0.1, 0.2, 0.0]},
}
OTHER = {
    "pins_total": {"none": 1, "fast": 4},
    "ttft_seconds_total": {"first": 2.0, "later": 1.0},
    "kv_cache_usage": 0.75,
    "learned": {"eta": 0.5, "prefill_reload_s": [0.3, 0.1, 0.0]},
}


def test_counts_add_up_and_means_are_averaged() -> None:
    """Whole numbers and totals are summed, other fractions averaged, the rest is the first
    engine's."""
    assert merge_stats([ONE, OTHER]) == {
        "pins_total": {"none": 3, "fast": 4},
        "ttft_seconds_total": {"first": 2.0, "later": 1.5},
        "kv_cache_usage": 0.5,
        "learned": {"eta": None, "prefill_reload_s": [0.1, 0.2, 0.0]},
    }


def test_one_engine_is_not_touched() -> None:
    """With one engine its answer is returned as it is."""
    assert merge_stats([ONE]) is ONE


def test_what_is_true_of_one_engine_is_true() -> None:
    """A boolean that is true on one engine is true, not a count of engines."""
    calm, pressed = {"is_under_pressure": False}, {"is_under_pressure": True}
    assert merge_stats([calm, pressed, pressed])["is_under_pressure"] is True
    assert merge_stats([calm, calm])["is_under_pressure"] is False


@pytest.mark.asyncio
async def test_feedback_in_the_middle_of_a_step_is_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call that the engine has and does not answer soon is None, and is made all the same."""
    monkeypatch.setattr(engine_client, "BUSY_S", 0.05)
    step_over, made = asyncio.Event(), asyncio.Event()

    class BusyCore:
        async def call_utility_all_async(self, method: str, *args: Any) -> list[Any]:
            await step_over.wait()
            made.set()
            return [{"freed_blocks": 3}]

    link = EngineLink(FakeEngineClient(BusyCore()))
    assert await link.hand_over("release", "job") is None
    assert not made.is_set()
    step_over.set()
    await asyncio.wait_for(made.wait(), 5)
    assert await link.hand_over("release", "job") == [{"freed_blocks": 3}]


@pytest.mark.asyncio
async def test_open_streams_end_with_the_engine() -> None:
    """A request that waits for a token of a stopped engine gets an error, so that its server can
    end: vLLM's shutdown alone leaves it waiting."""
    processor = OutputProcessor(None, log_stats=False)
    waiting = RequestOutputCollector(RequestOutputKind.DELTA, "r")
    processor.request_states["r"] = SimpleNamespace(queue=waiting)
    client = FakeEngineClient(None, processor)
    end_streams_with(client)
    await asyncio.to_thread(client.shutdown, timeout=0)
    with pytest.raises(EngineDeadError):
        await asyncio.wait_for(waiting.get(), 5.0)
