"""The Grafana dashboard, the alert rules and the configuration of both, on a real Prometheus.

It scrapes a real server under a short load, and is asked every query of every panel.
"""

import json
import math
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from agentkv.server.process import ServerProcess, free_port
from tests.server.chat import LIMIT_S, WORDS, chat, wait_for

FOLDER = Path(__file__).parents[3] / "integrations" / "grafana"
BOARD: dict[str, Any] = json.loads((FOLDER / "agentkv.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
VARIABLES = {"$__rate_interval": "10s", "$model": ".*", "$engine": ".*"}
"""What Grafana puts in for the dashboard's variables, with a scrape a second."""


def tool(name: str) -> str:
    """Path of a program of Debian's package `prometheus`."""
    path = shutil.which(name)
    if path is None and "CI" not in os.environ:
        pytest.skip(f"{name} is not installed: apt-get install prometheus")
    assert path is not None, f"{name} is missing"
    return path


def promtool(*args: str, folder: Path = FOLDER) -> str:
    done = subprocess.run(
        [tool("promtool"), *args], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_the_configuration_and_the_rules() -> None:
    """The shipped prometheus.yml, with the alert rules that it names, has no fault."""
    assert "9 rules found" in promtool("check", "config", "prometheus.yml")


def test_alerts_fire_when_they_should_and_not_otherwise(tmp_path: Path) -> None:
    """Each alert has one case that fires and one that does not, both with its threshold nearby."""
    cases = Path(__file__).with_name("alerts_test.yml")
    for file in (FOLDER / "alerts.yml", cases):
        shutil.copy(file, tmp_path)
    promtool("test", "rules", cases.name, folder=tmp_path)
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
    for rule in rules:
        assert cases.read_text().count(f"alertname: {rule['alert']}") == 2


def test_every_alert_has_its_advice() -> None:
    """The page on monitoring names each alert."""
    page = (FOLDER.parents[1] / "docs/how-to/monitoring.md").read_text(encoding="utf-8")
    for rule in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]:
        assert f"`{rule['alert']}`" in page


@contextmanager
def prometheus_of(server: ServerProcess, folder: Path) -> Iterator[httpx.Client]:
    """A Prometheus with the shipped configuration that scrapes this server every second."""
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{server.port}"]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(FOLDER / "alerts.yml", folder)
    address = f"127.0.0.1:{free_port()}"
    flags = (
        "config.file=prometheus.yml",
        "storage.tsdb.path=data",
        f"web.listen-address={address}",
    )
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [tool("prometheus"), *(f"--{flag}" for flag in flags)],
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    try:
        with httpx.Client(base_url=f"http://{address}/api/v1/", timeout=LIMIT_S) as client:
            wait_for(lambda: _is_scraping(client))
            yield client
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def _is_scraping(client: httpx.Client) -> bool:
    try:
        targets = client.get("targets").json()["data"]["activeTargets"]
    except (httpx.TransportError, ValueError):
        return False
    return [target["health"] for target in targets] == ["up"]


def play_job(server: ServerProcess, job_id: str) -> None:
    """Three turns with a tool that is reported; the second turn asks for much memory."""
    url = f"{server.base_url}/agentkv/jobs/{job_id}"
    text = f"{job_id} {WORDS} {WORDS}"
    for turn, max_tokens in enumerate((16, 600, 16), start=1):
        chat(server, text, job_id=job_id, turn=turn, max_tokens=max_tokens)
        text += " and then"
        for event in ({"state": "started"}, {"state": "finished", "duration_s": 0.05}):
            body = {"command": "ls -la", "turn": turn, **event}
            httpx.post(f"{url}/tool", json=body, timeout=LIMIT_S).raise_for_status()
    httpx.post(f"{url}/release", timeout=LIMIT_S).raise_for_status()


def answers(client: httpx.Client, query: str, began_s: float) -> list[float]:
    """All finite values of a query since `began_s`."""
    for variable, value in VARIABLES.items():
        query = query.replace(variable, value)
    assert "$" not in query
    span = {"start": began_s, "end": time.time(), "step": 1}
    reply = client.get("query_range", params={"query": query, **span}).json()
    assert reply["status"] == "success", (query, reply)
    values = [float(value) for series in reply["data"]["result"] for _, value in series["values"]]
    return [value for value in values if math.isfinite(value)]


def panels_without_data(client: httpx.Client, began_s: float) -> Iterator[str]:
    for query in (target["expr"] for panel in PANELS for target in panel["targets"]):
        if not answers(client, query, began_s):
            yield query


@pytest.mark.server
def test_every_query_of_the_dashboard_has_data(
    scarce_server: ServerProcess, tmp_path: Path
) -> None:
    """A load with pins, hits, misses and too little memory shows in every panel."""
    server = scarce_server
    with prometheus_of(server, tmp_path) as client:
        began_s = time.time()
        with ThreadPoolExecutor(40) as pool:
            jobs = [pool.submit(play_job, server, f"job-{number}") for number in range(16)]
            # requests of no job are not held back, and so run out of memory
            long = [f"request {number} {WORDS}" for number in range(24)]
            alone = [pool.submit(chat, server, text, max_tokens=1000) for text in long]
            for done in jobs + alone:
                done.result()
        # the last counts follow their requests, and are in a scrape a second later
        deadline_s = time.monotonic() + LIMIT_S
        while empty := list(panels_without_data(client, began_s)):
            assert time.monotonic() < deadline_s, empty
            time.sleep(1)
        assert max(answers(client, "agentkv:under_pressure", began_s)) == 1
        assert max(answers(client, 'agentkv:hit_tokens_total{turn="2"}', began_s)) > 0
        assert max(answers(client, "sum(agentkv:predictions_total)", began_s)) > 0
        rules = client.get("rules").json()["data"]["groups"][0]["rules"]
        assert {rule["health"] for rule in rules} == {"ok"}
        variables = [item for item in BOARD["templating"]["list"] if item["type"] == "query"]
        for variable in variables:
            found = re.fullmatch(r"label_values\(([^{]+).*, (\w+)\)", variable["query"])
            assert found is not None
            values = client.get(f"label/{found[2]}/values", params={"match[]": found[1]}).json()
            assert values["data"]
