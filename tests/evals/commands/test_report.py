"""`agentkv report`: what its one file holds, and that a browser needs nothing else to show it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentkv.cli import main as agentkv
from agentkv.evals.page import shown_command
from tests.browser import PHONE, chromium, page_of, scrolls_sideways
from tests.evals.event_log.rows import TWO_TURNS, write_record
from tests.evals.figures.made_runs import made_run, write_runs

__all__ = ["chromium"]

EVIL = "<script>document.title='hacked'</script>"


@pytest.fixture
def runs(tmp_path: Path) -> str:
    """Six jobs under each of two policies."""
    folder = tmp_path / "rows"
    write_runs(folder, [made_run(policy, num_jobs=6) for policy in ("fcfs", "agentkv")])
    return str(folder)


def test_a_report_of_runs_has_their_table_and_figures(
    runs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sentence names the fastest policy, or says that none is faster than stock; each has a row
    of numbers, and each figure that can be drawn stands in the file."""
    path = tmp_path / "out.html"
    write_runs(tmp_path / "same", [made_run("fcfs"), replace(made_run("fcfs"), policy="mine")])
    assert agentkv(["report", str(tmp_path / "same"), "--html", str(path)]) == 0
    assert "No other policy does the mean job faster than fcfs: " in path.read_text()
    capsys.readouterr()
    assert agentkv(["report", runs, "--html", str(path), "--force"]) == 0
    document = json.loads(capsys.readouterr().out)
    text = path.read_text()
    assert len(document["figures"]) == text.count("data:image/svg+xml;base64,") >= 1
    assert "<td>fcfs</td><td>" in text
    assert re.search(r"agentkv: the mean job is done 1\.\d\d times as fast as under fcfs", text)
    assert "<td>agentkv</td><td>" in text
    assert "6 of 6" in text


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--api-key", "sk 1", "--jobs", "2"], "--api-key *** --jobs 2"),
        (["--api=sk-1", "--token-scale", ".5"], "'--api=***' --token-scale .5"),
        (["--rival-proxy", "x=p --master-key sk-1 {server}"], "'x=p --master-key *** {server}'"),
        (["-H", "Authorization: Bearer sk-1"], "-H 'Authorization: Bearer ***'"),
        (['{"api_key": "sk-1", "n": 1}'], """'{"api_key": "***", "n": 1}'"""),
        (["http://me:sk-1@host/v1?token=sk-2"], "'http://***@host/v1?token=***'"),
    ],
)
def test_a_shown_command_holds_no_secret(words: list[str], shown: str) -> None:
    """Keys, tokens and passwords are hidden, however they are given; the rest stays."""
    assert shown_command("compare", words).endswith(shown)


def test_a_report_of_swebench_holds_its_page_and_figure(tmp_path: Path) -> None:
    """What `agentkv swebench report` wrote stands in the file, the figure as an image."""
    (tmp_path / "report.md").write_text("| policy | <resolved> |")
    (tmp_path / "report.png").write_bytes(b"\x89PNG")
    path = tmp_path / "out.html"
    assert agentkv(["report", str(tmp_path), "--html", str(path)]) == 0
    assert "| policy | &lt;resolved&gt; |" in path.read_text()
    assert path.read_text().count("data:image/png;base64,") == 1


def test_an_existing_report_is_kept(runs: str, tmp_path: Path) -> None:
    """Without --force a file is not replaced."""
    path = tmp_path / "out.html"
    path.write_text("mine")
    assert agentkv(["report", runs, "--html", str(path)]) == 2
    assert path.read_text() == "mine"
    assert agentkv(["report", runs, "--html", str(path), "--force"]) == 0


@pytest.mark.parametrize("command", ["report --html out.html", "record --timeline out.html"])
def test_a_log_is_shown_without_the_packages_of_figures(command: str, tmp_path: Path) -> None:
    """On a laptop with the client alone a server's log needs none of them."""
    source = write_record(tmp_path / "log.jsonl", job=TWO_TURNS)
    program = (
        "import sys; from agentkv.cli import main; assert main(sys.argv[1:]) == 0;"
        "sys.exit(str({'numpy', 'pandas', 'matplotlib', 'rich'} & set(sys.modules)))"
    )
    words = [sys.executable, "-c", program, *command.split(), str(source)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr.endswith("set()\n"), done.stderr


def test_a_report_of_a_log_is_the_live_page_with_its_events(chromium: Any, tmp_path: Path) -> None:
    """Chromium shows each job's lane over the whole log, its turns and its losses, without an
    error, a request or sideways scrolling on a phone; a job id with tags in it is text."""
    source = write_record(tmp_path / "log.jsonl", **{EVIL: TWO_TURNS, "job-2": TWO_TURNS})
    path = tmp_path / "out.html"
    assert agentkv(["report", str(source), "--html", str(path)]) == 0
    miss = "computed 32 tokens again: another request took the memory"
    with page_of(chromium, path.as_uri(), size=PHONE) as page:
        page.wait_for_selector("td.job")
        assert page.inner_text("h1") == "agentkv: log.jsonl"
        jobs = page.eval_on_selector_all("td.job", "cells => cells.map(cell => cell.textContent)")
        assert sorted(jobs) == sorted([EVIL, "job-2"])
        lane = page.get_attribute(".lane", "aria-label")
        assert lane == "over 5.5 s: waiting 0.8 s, running 1.3 s, held 0.7 s, tool 2.8 s"
        why = page.eval_on_selector_all("td.why", "cells => cells.map(cell => cell.textContent)")
        assert why == ["1 turn computed tokens again; the client released the job"] * 2
        assert page.inner_text("#total-hits") == "50 %"
        page.click("text=job-2")
        page.wait_for_selector(".turns td")
        holds = page.inner_text(".turns")
        assert "holds 7 blocks for up to 2 s; its next turn came after 3.2 s" in holds
        assert miss in holds
        assert page.get_attribute("#total-pins", "value") == "2"
        assert page.get_attribute("#total-twice", "value") == "64"
        assert "computes 32 tokens again" in page.inner_text("#decisions")
        assert "\n2 jobs, 4 turns" in page.inner_text("#summary")
        assert not page.is_visible("#pause")
        assert not scrolls_sideways(page)
        assert (page.problems, page.hosts, page.title()) == ([], set(), "agentkv")
