"""Facts about what is asked of a server besides its turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentkv.evals.load.load_server import (
    LoadServer,
    LoadServerError,
    metric_totals,
    preemptions_between,
)
from agentkv.testing import ScriptedServer
from agentkv.testing.http_front import Answer, HttpFront
from tests.evals.load.fake_vllm import FakeVllm

PAGE = Path(__file__).parents[1] / "metrics_continuum.txt"


def test_metrics_are_summed_over_labels() -> None:
    """Counters, gauges and the sums of histograms; no buckets, nothing of the process."""
    totals = metric_totals(PAGE.read_text())
    assert totals["vllm:kv_cache_usage_perc"] >= 0.0
    assert totals["agentkv:pins_total"] == 4.0
    assert all(name.startswith(("vllm:", "agentkv:")) for name in totals)
    assert not any(name.endswith("_bucket") for name in totals)


def test_a_page_that_is_no_metrics_gives_nothing() -> None:
    """The counters are beside the measurement, and do not end it."""
    assert metric_totals('{"error": "not found"}') == {}


def test_preemptions_are_a_difference() -> None:
    """None where one of the readings does not tell."""
    readings = [{"metrics": {"vllm:num_preemptions_total": count}} for count in (3.0, 5.0)]
    assert preemptions_between(*readings) == 2
    assert preemptions_between(readings[0], {"error": "gone"}) is None


def test_the_server_tells_what_it_is() -> None:
    """Model, longest context, version, and the plugin's facts where it is there."""
    with FakeVllm(policy="continuum") as fake, LoadServer(fake.base_url) as server:
        facts = server.facts(None)
    assert (facts.model, facts.max_context_tokens, facts.vllm_version) == ("fake", 4096, "0.0.fake")
    assert facts.info is not None
    assert facts.info["policy"] == "continuum"


def test_a_server_that_offers_no_models_is_refused() -> None:
    """With its status, and what to check."""
    refused = pytest.raises(LoadServerError, match=r"HTTP 404.*--api-key")
    with ScriptedServer() as scripted, LoadServer(scripted.base_url) as server, refused:
        server.facts(None)


@pytest.mark.parametrize("url", ["nonsense", "http://", "http://127.0.0.1:1"])
def test_an_address_that_is_none_is_named(url: str) -> None:
    """Whatever is wrong with it."""
    refused = pytest.raises(LoadServerError, match=r"--base-url|not a URL")
    with refused, LoadServer(url) as server:
        server.facts(None)


@pytest.mark.parametrize("body", [[], {}, "hello", None])
def test_a_server_that_answers_something_else_is_named(body: Any) -> None:
    """A proxy or a web page behind the right list of models, whatever it is asked."""
    models = {"data": [{"id": "m", "max_model_len": "long"}]}
    front = HttpFront(lambda _, path, *rest: Answer(200, models if "models" in path else body))
    front.start()
    try:
        with LoadServer(front.url) as server:
            with pytest.raises(LoadServerError, match="/v1/agentkv/info"):
                server.facts(None)
            with pytest.raises(LoadServerError, match="/tokenize gives no tokens"):
                server.tokenize("m", ["text"])
    finally:
        front.stop()
