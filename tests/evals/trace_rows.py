"""A made-up project's commands with their durations, for tests of what reads traces."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from agentkv.evals.traces.commands import TracedCommand

TYPICAL_S = {
    "ls -la": 0.05,
    "grep -rn TODO src": 0.3,
    "git status": 0.1,
    "go vet ./...": 3.0,
    "go test ./...": 12.0,
    "npm install": 30.0,
}


def synthetic_lines(num: int = 120, num_sessions: int = 8, seed: int = 0) -> list[dict[str, Any]]:
    """Lines of a trace: six commands around their typical durations, a few known by a bound."""
    chance = random.Random(seed)
    lines: list[dict[str, Any]] = []
    for number in range(num):
        command = chance.choice(list(TYPICAL_S))
        line = {
            "session": f"s{number * num_sessions // num}",
            "order": 1000.0 + number,
            "command": command,
            "duration_s": round(TYPICAL_S[command] * math.exp(chance.gauss(0.0, 0.4)), 3),
            "censored": False,
            "is_error": False,
            "timeout_s": None,
        }
        if command == "git status" and chance.random() < 0.3:
            line |= {"duration_s": None, "censored": True}
        if command == "npm install" and chance.random() < 0.2:
            line |= {"duration_s": 20.0, "is_error": True, "timeout_s": 20.0}
        lines.append(line)
    return lines


def write_lines(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


def row(
    duration_s: float = 1.0, command: str = "ls", *, session: str = "s0", **fields: Any
) -> TracedCommand:
    """A traced command with the fields that matter to a test."""
    values = {"trace": "t", "order": 0.0, "bound": "exact"} | fields
    return TracedCommand(command=command, duration_s=duration_s, session=session, **values)
