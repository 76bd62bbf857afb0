"""The Prometheus series, and vLLM's stat logger that feeds them.

Series register once per process and live as long as it does, so most cases have their own.
"""

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY
from vllm.v1.metrics.stats import SchedulerStats

from agentkv.integrations.vllm.engine.seam import STATS_FIELD
from agentkv.integrations.vllm.watch.counters import COUNTERS
from agentkv.integrations.vllm.watch.prometheus import AgentKVStatLogger
from agentkv.policies.pins import PIN_ENDS

pytestmark = pytest.mark.slow

PAYLOAD = {
    "gauges": {"pinned_jobs": 2, "pinned_blocks": 9},
    "counters": [["pins_total", {"speed": "none"}, 3], ["preemptions_total", {}, 1]],
    "observations": {"tool_duration_seconds": [0.2, 4.0]},
}

PREAMBLE = f"""
import os, sys
from prometheus_client import REGISTRY, generate_latest
from agentkv.integrations.vllm.watch.prometheus import metric_series

COMMON = {{"model_name": "m", "engine": "0"}}
PAYLOAD = {PAYLOAD!r}

def run(case, code):
    # in a process of its own that has vLLM already, which takes seconds to import
    child = os.fork()
    if child == 0:
        if folder := os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = os.path.join(folder, case)
            os.makedirs(os.path.join(folder, case), exist_ok=True)
        print("case", case)
        exec(code, globals())
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0

def show(registry=REGISTRY):
    for line in generate_latest(registry).decode().splitlines():
        if line.startswith("agentkv:") and "_created" not in line and "_bucket" not in line:
            print(line)
"""


Series = dict[str, dict[str, float]]


def series_after(cases: Mapping[str, Sequence[str]], **environment: str) -> Series:
    """For each case the agentkv series that fresh processes, one for each of its codes, show;
    without their buckets."""
    script = PREAMBLE
    for case, codes in cases.items():
        script += "".join(f"run({case!r}, {textwrap.dedent(code)!r})\n" for code in codes)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: Series = {}
    for line in done.stdout.splitlines():
        if line.startswith("case "):
            series = found.setdefault(line.removeprefix("case "), {})
        elif line.startswith("agentkv:"):
            name, value = line.rsplit(" ", 1)
            series[name] = float(value)
    return found


@pytest.fixture(scope="module")
def of_one() -> Series:
    """The series of one API server."""
    return series_after(
        {
            "start": ["metric_series().start(COMMON); show()"],
            "two payloads": [
                """
                metric_series().apply(PAYLOAD, COMMON)
                idle = {"pinned_jobs": 0, "pinned_blocks": 0}
                metric_series().apply({**PAYLOAD, "gauges": idle}, COMMON)
                show()
                """
            ],
        }
    )


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> Series:
    """The series of two API servers, of which the second one hears more, or nothing."""
    first = "metric_series().start(COMMON); metric_series().apply(PAYLOAD, COMMON)"
    start = """
        from prometheus_client import CollectorRegistry, multiprocess
        metric_series().start(COMMON)
    """
    hear = """
        gauges = {"pinned_jobs": 1, "pinned_blocks": 4}
        metric_series().apply({**PAYLOAD, "gauges": gauges}, COMMON)
    """
    end = """
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)
        show(registry)
    """
    cases = {"both hear": [first, start + hear + end], "one hears nothing": [first, start + end]}
    return series_after(cases, PROMETHEUS_MULTIPROC_DIR=str(tmp_path_factory.mktemp("series")))


def test_all_series_exist_at_zero_from_the_start(of_one: Series) -> None:
    """Every counter of the engine has a series, each with its known label values at 0."""
    series = of_one["start"]
    assert set(series.values()) == {0.0}
    common = 'engine="0",model_name="m"'
    for name in ("pinned_jobs", "pinned_blocks", "preemptions_total", "bad_tags_total"):
        assert f"agentkv:{name}{{{common}}}" in series
    for name in ("tool_duration_seconds", "pin_ttl_seconds", "pin_held_seconds"):
        assert f"agentkv:{name}_count{{{common}}}" in series
    for reason in PIN_ENDS:
        assert f'agentkv:pin_ends_total{{{common},reason="{reason}"}}' in series
    for speed in ("none", "fast", "slow", "uncertain"):
        assert f'agentkv:pins_total{{{common},speed="{speed}"}}' in series
    for source in ("client", "piggyback", "gap"):
        assert f'agentkv:tool_observations_total{{{common},source="{source}"}}' in series
    shown = {name.partition("{")[0].removeprefix("agentkv:") for name in series}
    assert set(COUNTERS) <= shown


def test_payloads_add_up(of_one: Series) -> None:
    """Over two payloads counters and histograms add up, and gauges show the last."""
    series = of_one["two payloads"]
    common = 'engine="0",model_name="m"'
    assert series[f'agentkv:pins_total{{{common},speed="none"}}'] == 6
    assert series[f"agentkv:preemptions_total{{{common}}}"] == 2
    assert series[f"agentkv:pinned_blocks{{{common}}}"] == 0
    assert series[f"agentkv:tool_duration_seconds_count{{{common}}}"] == 4
    assert series[f"agentkv:tool_duration_seconds_sum{{{common}}}"] == 8.4


@pytest.mark.parametrize(
    ("case", "num_pins", "num_blocks"), [("both hear", 6, 4), ("one hears nothing", 3, 9)]
)
def test_two_api_servers_show_one_truth(
    of_two: Series, case: str, num_pins: int, num_blocks: int
) -> None:
    """With two API servers counters add up over both, and gauges are those of the later stats; one
    that starts later and hears nothing leaves the value of the other standing."""
    series = of_two[case]
    common = 'engine="0",model_name="m"'
    assert series[f'agentkv:pins_total{{{common},speed="none"}}'] == num_pins
    assert series[f"agentkv:pinned_blocks{{{common}}}"] == num_blocks


def test_the_stat_logger_feeds_the_series_under_our_policy_only() -> None:
    """vLLM's own stats object carries the payload; under fcfs nothing is even registered.

    A second logger, of an engine built again in the same process, adds to the same series.
    """
    stats, bare = SchedulerStats(), SchedulerStats()
    setattr(stats, STATS_FIELD, PAYLOAD)

    def pins_after_logging(additional_config: dict[str, Any]) -> float | None:
        config: Any = SimpleNamespace(
            additional_config=additional_config, model_config=SimpleNamespace(served_model_name="m")
        )
        logger = AgentKVStatLogger(vllm_config=config, engine_indexes=[0])
        for given in (stats, bare, None):
            logger.record(given, None, engine_idx=0)
        labels = {"model_name": "m", "engine": "0", "speed": "none"}
        return REGISTRY.get_sample_value("agentkv:pins_total", labels)

    assert pins_after_logging({}) is None
    assert pins_after_logging({"agentkv": {"policy": "continuum"}}) == 3
    assert pins_after_logging({"agentkv": {"policy": "continuum"}}) == 6


@pytest.mark.parametrize(
    "problem",
    [{"counters": [["unheard_of_total", {}, 1]]}, {"gauges": {"unheard_of": 1}}],
    ids=["counter", "gauge"],
)
def test_a_payload_it_cannot_read_costs_a_warning_and_not_the_server(
    problem: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """vLLM calls the logger in the task that hands every request its output."""
    stats, model = SchedulerStats(), str(problem)
    setattr(stats, STATS_FIELD, {**PAYLOAD, **problem})
    config: Any = SimpleNamespace(
        additional_config={"agentkv": {"policy": "continuum"}},
        model_config=SimpleNamespace(served_model_name=model),
    )
    stat_logger = AgentKVStatLogger(vllm_config=config, engine_indexes=[0])
    for _ in range(2):
        stat_logger.record(stats, None, engine_idx=0)
    (record,) = caplog.records
    assert record.message == "agentkv's Prometheus series end here; serving goes on"
