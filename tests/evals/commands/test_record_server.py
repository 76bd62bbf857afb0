"""`agentkv record` and `agentkv report` on the record of a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentkv.cli import main as agentkv
from agentkv.server.process import ServerProcess
from tests.server.chat import WORDS, agentkv_get, chat

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]


def test_a_servers_record_is_read_over_http(
    tiny_continuum_server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two turns with a bubble and a kept pin are shown as the server recorded them."""
    for turn, text in enumerate((WORDS, f"{WORDS} {WORDS}"), start=1):
        chat(tiny_continuum_server, text, job_id="recorded", turn=turn, is_last_step=turn == 2)
    events = agentkv_get(tiny_continuum_server, "timestamps")["jobs"]["recorded"]
    capsys.readouterr()
    page = tmp_path / "t.html"
    url = tiny_continuum_server.base_url
    assert agentkv(["record", url, "--json", "--job", "recorded", "--timeline", str(page)]) == 0
    (job,) = json.loads(capsys.readouterr().out)["jobs"]
    assert (job["turns_finished"], job["pins"], job["pins_kept"]) == (2, 1, 1)
    assert job["close_reason"] == "last_step"
    starts = [event for event in events if event["event"] == "waiting_to_running"]
    hits = [row["hit_tokens"] for row in job["turn_rows"]]
    assert hits == [event["hit_length"] for event in starts]
    (finish, _) = [event for event in events if event["event"] == "finish"]
    assert job["bubbles_s"] == [pytest.approx(starts[1]["at_s"] - finish["at_s"], abs=1e-5)]
    assert '"job_id": "recorded"' in page.read_text()


def test_a_servers_report_is_one_file(
    tiny_continuum_server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report of a running server has what it saved since its start, and each job's events."""
    chat(tiny_continuum_server, WORDS, job_id="reported", is_last_step=True)
    path = tmp_path / "out.html"
    assert agentkv(["report", tiny_continuum_server.root_url, "--html", str(path)]) == 0
    text = path.read_text()
    assert '"kept_tokens"' in text
    assert '"job_id": "reported"' in text
    assert json.loads(capsys.readouterr().out)["html"] == str(path)
