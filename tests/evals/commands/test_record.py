"""`agentkv record`: the table, the document, and its complaints."""

from pathlib import Path

import pytest

from agentkv.cli import main as agentkv
from tests.evals.event_log.rows import TWO_TURNS, write_record
from tests.evals.trace_rows import write_lines


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
    assert shown == "2 5.50 3.00 0.25 50% 160 1 2 1 0 0 released"
    assert "... 1 more jobs (--top 3 shows all)" in text
    assert "Later turns found 50% of their prompts in the cache: 240 of 480 tokens" in text
    assert "3 jobs, 6 turns (6 finished, 0 aborted), 0 preemptions" in text
    assert "6: 3 released, 3 returned" in text


def test_a_job_that_is_not_there_is_named(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--job picks what is shown; an unknown one is refused with the known ones."""
    assert agentkv(["record", source, "--job", "job-1"]) == 0
    assert "\n1 job, 2 turns" in capsys.readouterr().out
    assert agentkv(["record", source, "--job", "job-9"]) == 2
    assert "no job 'job-9' in the record; it has 3: job-0" in capsys.readouterr().err


def test_a_torn_record_is_shown(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An incomplete last line is mentioned and left out."""
    path = Path(source)
    path.write_text(path.read_text()[:-9], encoding="utf-8")
    assert agentkv(["record", source]) == 0
    assert "the last line is incomplete" in capsys.readouterr().err


def test_a_log_of_agents_is_left_to_explain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is no event log is refused, and the command that reads it named."""
    line = {"job_id": "a", "turn": 0, "prompt_tokens": 9, "output_tokens": 5}
    path = write_lines(tmp_path / "own.jsonl", [line | {"command": None, "tool_s": None}])
    assert agentkv(["record", str(path)]) == 2
    assert "explain reads agents' logs" in capsys.readouterr().err
