"""Text of others can do nothing to a terminal: each command shows it with escapes."""

import tomllib
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentkv.cli import main
from agentkv.visible import visible
from tests.evals.event_log.rows import write_record
from tests.evals.fake_vllm import answering
from tests.http_front import Answer

EVIL = (
    "x\x1b]0;title\x07\x1b]52;c;cGFzdGU=\x07\x1b[5;31m\x9b2J\x7f\b\r\nforged: line\t"
    "\u202egnp.exe\u2066\u200b\u2028\u3164\U000e0041"
)
HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def controls_in(text: str) -> set[str]:
    """What could move, hide or reorder text; a line that the text of others began counts, too."""
    found = {char for char in text if unicodedata.category(char) in HIDDEN} - {"\n"}
    return found | {line for line in text.splitlines() if line.startswith("forged")}


MISS = {"tokens": 9, "reason": EVIL, "why": EVIL, "advice": EVIL}
EVENTS = [
    {"event": "arrival", "at_s": 1.0, "turn": 1, "prompt_length": 9},
    {"event": "closed", "at_s": 2.0, "turns": 1, "reason": EVIL},
]
TOKENS = {"later_hit_tokens": 0, "later_prompt_tokens": 9}
TURN = {"turn": 1, "hit_tokens": 0, "expected_tokens": 9, "miss": MISS}
EXPLAINED = {
    **{"job_id": EVIL, "turns": [TURN]},
    "tokens": {**TOKENS, "recomputed_tokens": {EVIL: 9}},
}


def evil_answer(path: str) -> Answer:
    answers: dict[str, Any] = {
        "/v1/models": {"data": [{"id": EVIL, "root": EVIL, "max_model_len": 4096}]},
        "/version": {"version": EVIL},
        "/v1/agentkv/timestamps": {"jobs": {EVIL: EVENTS}},
        "/v1/agentkv/explain": {"jobs": [EXPLAINED]},
        "/v1/agentkv/info": {
            **{"wire_version": 1, "policy": EVIL, "settings": {}, "vllm_version": EVIL},
            **{"version": EVIL, "block_size": 16, "num_blocks": 100},
        },
    }
    found = answers.get(path.partition("?")[0])
    error = {"error": {"message": EVIL}}
    return Answer(404, error) if found is None else Answer(200, found)


@pytest.fixture
def url() -> Iterator[str]:
    with answering(evil_answer) as url:
        yield url


COMMANDS = (
    "record {url}",
    "record {url} --json",
    "record {url} --job nope",
    "record {log}",
    "explain --worst 1 --url {url}",
    *(f"run {agent} {{url}} --print" for agent in ("aider", "codex", "claude", "opencode")),
    "doctor --url {url}",
    "verify-pin --url {url}",
    "verify-pin --url {url} --model other",
    "bench --url {url}",
)


@pytest.mark.parametrize("line", COMMANDS)
def test_no_command_prints_a_control_of_others(
    line: str, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What any command says of a hostile server's ids, reasons and model shows them as escapes."""
    log = write_record(tmp_path / "log.jsonl", **{EVIL: EVENTS})
    main([word.format(url=url, log=log) for word in line.split()])
    out, err = capsys.readouterr()
    assert not controls_in(out + err)
    assert "\\u" in out + err


@pytest.mark.parametrize("text", ["plain", "héé 日本 🙂 e\u0301\xa0", "\\u001b"])
def test_other_text_stays(text: str) -> None:
    """Letters of any script, their marks and blanks are shown as they are."""
    assert visible(text) == text


def test_codex_reads_any_name(capsys: pytest.CaptureFixture[str]) -> None:
    """The TOML is valid and means the name."""
    assert main(["run", "codex", "http://h", "--model", EVIL, "--print"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["model"] == EVIL
