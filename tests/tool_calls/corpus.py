"""The corpus of replies: texts as models write them, with the tool calls that they contain.

One TOML file per dialect under cases/. A case has an `id` that states its fact, a `reply`, and the
`commands` of its bash calls or, if names and arguments matter, its `calls`.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "cases"


@dataclass(frozen=True, slots=True)
class Case:
    """A reply and the calls expected of it; `source` is the reader that must find them."""

    id: str
    reply: str
    calls: tuple[dict[str, Any], ...]
    source: str


def read_corpus() -> list[Case]:
    """Read all cases, file by file."""
    return [case for path in sorted(FOLDER.glob("*.toml")) for case in _read(path)]


def _read(path: Path) -> list[Case]:
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    return [
        Case(
            id=f"{path.stem}: {case['id']}",
            reply=case["reply"],
            calls=tuple(_expected(case)),
            source=case.get("source", document["source"]),
        )
        for case in document["case"]
    ]


def _expected(case: dict[str, Any]) -> list[dict[str, Any]]:
    """TOML has no null: an empty `command` stands for a call that runs none."""
    calls = case.get("calls", [{"command": command} for command in case.get("commands", [])])
    return [{key: None if value == "" else value for key, value in call.items()} for call in calls]
