"""The live page of a real server, in Chromium, while the demo agent works on it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentkv.server.process import ServerProcess
from tests.browser import DESKTOP, PHONE, chromium, page_of, scrolls_sideways

__all__ = ["chromium"]

pytestmark = pytest.mark.server

EXAMPLE = Path(__file__).parents[2] / "examples" / "bash_agent.py"
PICTURES = os.environ.get("AGENTKV_TEST_PICTURES")
"""Folder for screenshots, for the docs and for those who want to look."""
OUTPUT_HANDLER = "[async_llm.py:"
"""Of vLLM's own log line: once it has answered a request, it may hear of its engine's end before it
stops listening, under stock `fcfs` too (vllm/v1/engine/async_llm.py:906)."""


def demo_agents(server: ServerProcess, number: int) -> list[subprocess.Popen[bytes]]:
    """Demo agents that play the tour at the same time."""
    command = [sys.executable, str(EXAMPLE), "--base-url", server.base_url, "--yes"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return [subprocess.Popen(command, **quiet) for _ in range(number)]


def test_the_demo_agents_turns_appear_in_the_page(
    chromium: Any, demo_server: ServerProcess
) -> None:
    """While agents play the tour their jobs appear in lanes and states; afterwards the figures of
    the page are those of /stats, a hold has been a sentence, and a row opens for its turns."""
    server = demo_server
    url = f"{server.base_url}/agentkv/ui"
    with (
        page_of(chromium, url) as page,
        page_of(chromium, url, size=PHONE, scheme="dark") as phone,
    ):
        page.wait_for_selector("#status[data-state=live]")
        agents = demo_agents(server, 3)
        page.wait_for_selector("td.state >> text=running", timeout=120_000)
        page.wait_for_selector("td.turn >> text=/^[4-9]$/", timeout=240_000)
        shots = {"watch-desktop": page, "watch-phone": phone}
        for name, shown in shots.items():
            assert not scrolls_sideways(shown)
            if PICTURES:
                shown.screenshot(path=f"{PICTURES}/{name}.png")
        assert [agent.wait(240) for agent in agents] == [0, 0, 0]
        page.wait_for_selector("text=over after 5 turns")
        stats = httpx.get(f"{server.base_url}/agentkv/stats", timeout=30).json()
        ends = stats["pin_ends_total"]
        hits = stats["tokens"]["later_hit_tokens"]
        expected = {"pins": ends["returned"], "jobs": 0, "hits": hits}
        for name, value in expected.items():
            page.wait_for_selector(f"#total-{name}[value='{value}']")
        assert ends["returned"] > 0
        assert page.inner_text("#tail-took").startswith("p50\xa0")
        assert page.get_attribute(".legend .held + b, .legend b >> nth=1", "data-blocks") == "0"
        assert "its next turn came after" in page.inner_text("#decisions")
        page.click("button.open")
        page.wait_for_selector(".turns tbody tr:nth-child(5)")
        assert page.problems == phone.problems == []
        assert page.hosts == {server.host}
        with page_of(chromium, url) as fresh:  # its means are those since the server's start
            fresh.wait_for_selector(".detail, td.job")
            turns = stats["finished_turns_total"]["later"]
            for name, total in (("ttft", "ttft_seconds_total"), ("took", "turn_seconds_total")):
                mean_s = float(fresh.get_attribute(f"#total-{name}", "value") or 0)
                assert mean_s == pytest.approx(stats[total]["later"] / turns)
            assert fresh.inner_text("#replay") == f"agentkv replay {server.root_url}"
            assert "demo on " in fresh.title()


def test_a_server_with_viewers_ends_when_it_is_stopped(
    chromium: Any, demo_server: ServerProcess
) -> None:
    """An open page does not keep the server from ending, and then says that it is gone."""
    server = demo_server
    with page_of(chromium, f"{server.base_url}/agentkv/ui", size=DESKTOP) as page:
        page.wait_for_selector("#status[data-state=live]")
        server.stop()
        tracebacks = [line for line in server.log_tail(200).splitlines() if "Traceback" in line]
        assert [line for line in tracebacks if OUTPUT_HANDLER not in line] == []
        page.wait_for_selector("#status[data-state=gone]")
