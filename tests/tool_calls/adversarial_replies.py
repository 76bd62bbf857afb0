"""Adversarial replies: one piece of a dialect repeated, alone, behind an opener or in a block."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

NUM_CHARS = 200_000
_TABLES = tomllib.loads(Path(__file__).with_name("adversarial_units.toml").read_text("utf-8"))
UNITS = tuple(_TABLES["units"])


def adversarial_replies(
    units: tuple[str, ...] = UNITS, num_chars: int = NUM_CHARS
) -> Iterator[tuple[str, str]]:
    """Yield a name and a text of `num_chars` characters for each unit and its surroundings."""
    for unit in units:
        text = (unit * (num_chars // len(unit) + 1))[:num_chars]
        yield f"{unit!r}", text
        for opener in _TABLES["openers"]:
            yield f"{unit!r} behind {opener!r}", (opener + text)[:num_chars]
        for closer in _TABLES["closers"]:
            opened = "```bash\n" + text[: num_chars - 30]
            yield f"{unit!r} in a block before {closer!r}", opened + closer
    heredocs = [f"A{index}\n" for index in range(num_chars // 17)]
    opened = "".join(f"<<{name}" for name in heredocs)
    yield "here-documents", f"```bash\n{opened}```\n```\n{''.join(heredocs)}"
