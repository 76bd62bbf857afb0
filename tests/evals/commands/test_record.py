"""`agentkv record`: the table, the document, the page, and its complaints."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentkv.cli import main as agentkv
from tests.evals.event_log.rows import TWO_TURNS, write_record


@pytest.fixture
def source(tmp_path: Path) -> str:
    jobs = {f"job-{number}": TWO_TURNS for number in range(3)}
    return str(write_record(tmp_path / "scheduler_timestamps.jsonl", **jobs))


def test_the_table_has_a_line_for_each_job(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The totals stand under the jobs' lines; --top bounds the table, not the totals."""
    assert agentkv(["record", source, "--top", "2"]) == 0
    text = capsys.readouterr().out
    (line,) = [line for line in text.splitlines() if line.startswith("job-1 ")]
    shown = " ".join(line.split()[1:])
    assert shown == "2 5.50 3.00 0.25 50% 160 1 0.250 2 1 0 0 released"
    assert "... 1 more jobs (--top 3 shows all)" in text
    assert "Later turns found 50% of their prompts in the cache: 240 of 480 tokens" in text
    assert "3 jobs, 6 turns (6 finished, 0 aborted), 0 preemptions" in text
    assert "6: 3 released, 3 returned" in text


@pytest.mark.parametrize(
    ("flags", "status", "seen"),
    [
        (("--job", "job-9"), 2, "no job 'job-9' in the record; it has 3: job-0"),
        (("--timeline", "t.png"), 2, "allowed is a name with .html"),
        (("--timeline", "/proc/none/t.html"), 1, "cannot write /proc/none/t.html"),
    ],
)
def test_what_cannot_be_shown_is_named(
    source: str,
    flags: tuple[str, str],
    status: int,
    seen: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Bad usage gives status 2; a page that cannot be written gives 1, below the table."""
    assert agentkv(["record", source, *flags]) == status
    printed = capsys.readouterr()
    assert seen in printed.err
    assert ("3 jobs" in printed.out) == (status == 1)


def test_the_page_of_a_job_is_not_overwritten(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page that exists is refused without --force; --job picks what is on it."""
    page = tmp_path / "t.html"
    flags = ("record", source, "--job", "job-1", "--timeline", str(page))
    assert agentkv([*flags]) == 0
    assert "\n1 job, 2 turns" in capsys.readouterr().out
    assert "job-1" in page.read_text()
    assert "job-2" not in page.read_text()
    assert agentkv([*flags]) == 2
    assert agentkv([*flags, "--force"]) == 0


def test_a_torn_record_is_shown(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An incomplete last line is mentioned and left out."""
    path = Path(source)
    path.write_text(path.read_text()[:-9], encoding="utf-8")
    assert agentkv(["record", source]) == 0
    assert "the last line is incomplete" in capsys.readouterr().err
