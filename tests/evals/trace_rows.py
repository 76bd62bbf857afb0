"""Files of JSON lines, for tests of what reads them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_lines(path: Path, rows: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def own(job_id: str = "a", turn: int = 0, **fields: Any) -> dict[str, Any]:
    """A line of a turn."""
    values = {"prompt_tokens": 100, "output_tokens": 10, "command": "ls", "tool_s": 0.5}
    return {"job_id": job_id, "turn": turn} | values | fields
