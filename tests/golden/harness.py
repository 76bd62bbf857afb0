"""Runs commands as users do and compares what they print with what is on file.

Used by the tests of this folder alone. Knows commands, the public API and HTTP, and no module of
the project itself, so that code may move without a change here. `pytest tests/golden
--regenerate`, in one process, replaces the files; `git diff` then shows what has changed.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from agentkv.cli import main

FOLDER = Path(__file__).parent / "expected"

FREE_TEXT = frozenset(
    {"explanation", "reason", "message", "advice", "seen", "detail", "note"}
    | {"ttl_reason", "prediction_explanation"}
)
"""Fields for people: a sentence in them may change, a single word is a value."""


def run_command(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """Run the command in this process, where vLLM and litellm are imported once.

    Returns exit status, standard output and standard error.
    """
    out, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(errors):
        patch.setenv("COLUMNS", "200")
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8"))
        try:
            status: Any = main([*arguments])
        except SystemExit as ended:
            status = ended.code
        shown = [stream.buffer.getvalue().decode() for stream in (out, errors)]  # type: ignore[attr-defined]
    return status, *shown


def document_of(*arguments: str, status: int = 0, stdin: str = "") -> Any:
    """Run a command with --json, which must end with `status`; returns its document."""
    found, out, errors = run_command(*arguments, "--json", stdin=stdin)
    assert found == status, f"{arguments}: status {found}\n{out}\n{errors}"
    return json.loads(out)


def masked(value: Any, volatile: str = "(?!)") -> Any:
    """The value with numbers cut to six digits, and texts and volatile fields to their types.

    volatile: regular expression for the names of fields that differ from run to run.
    """
    if isinstance(value, dict):
        return {
            name: _type_of(field)
            if _is_sentence(name, field) or re.fullmatch(volatile, name)
            else masked(field, volatile)
            for name, field in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(item, volatile) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _is_sentence(name: str, value: Any) -> bool:
    return name in FREE_TEXT and isinstance(value, str) and " " in value


def _type_of(value: Any) -> str:
    return f"<{type(value).__name__}>"


def digest(value: Any) -> str:
    """Eight hexadecimal digits of a JSON value."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


class Golden:
    """The expected values of one test module, in `expected/NAME.json`."""

    def __init__(self, name: str, *, is_regenerating: bool) -> None:
        self._path = FOLDER / f"{name}.json"
        self._is_regenerating = is_regenerating

    def check(self, key: str, found: Any) -> None:
        """Compare a JSON value with the one on file under this key, or write it there."""
        found = json.loads(json.dumps(found))
        known = json.loads(self._path.read_text(encoding="utf-8")) if self._path.exists() else {}
        if self._is_regenerating:
            known[key] = found
            self._path.parent.mkdir(exist_ok=True)
            self._path.write_text(_compact(dict(sorted(known.items()))), encoding="utf-8")
        assert key in known, f"{self._path.name} has no {key!r}: run pytest with --regenerate"
        assert found == known[key]


def _compact(value: Any, indent: int = 0) -> str:
    """JSON with every value that fits into a line of 160 characters on one line."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + indent <= 160 or not value or not isinstance(value, dict | list):
        return line if indent else line + "\n"
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(name, ensure_ascii=False)}: {_compact(item, indent + 1)}"
            for name, item in value.items()
        ]
        opening, closing = "{}"
    else:
        parts = [_compact(item, indent + 1) for item in value]
        opening, closing = "[]"
    body = f",\n{pad}".join(parts)
    end = "" if indent else "\n"
    return f"{opening}\n{pad}{body}\n{' ' * indent}{closing}{end}"
