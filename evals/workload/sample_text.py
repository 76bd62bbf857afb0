"""Text such as coding agents see, the same on every machine: search hits, listings, prose.

Made from word lists by a fixed seed, so that no file of other people's text is needed.
"""

from __future__ import annotations

import random

NUM_SECTIONS, LINES_PER_SECTION = 160, 15
"""About 140,000 characters, 50,000 tokens: windows drawn at random rarely meet. A section is short
enough for any server's tokenizer."""
NOUNS = (
    *("parser", "token", "schema", "query", "cache", "router", "loader", "signal", "table"),
    *("column", "index", "cursor", "buffer", "stream", "session", "request", "response", "header"),
    *("worker", "queue", "task", "result", "record", "field", "value", "config", "option"),
    *("template", "filter", "module", "package", "path", "file", "folder", "branch", "commit"),
    *("error", "message"),
)
VERBS = (
    *("parse", "load", "read", "write", "build", "check", "merge", "split", "update", "remove"),
    *("create", "open", "close", "send", "receive", "find", "count", "sort", "group", "convert"),
    *("validate", "render", "flush", "reset", "return", "raise", "handle"),
)
LINES = (
    "src/{noun}/{other}.py:{number}: {verb}_{other}({noun}_{number})",
    "-rw-r--r-- 1 dev dev {number:>6} Mar  4 09:12 {noun}_{other}.py",
    "def {verb}_{noun}(self, {other}: str) -> int | None:",
    "    {noun} = self._{verb}_{other}({noun}, limit={number})",
    "tests/test_{noun}.py::test_{verb}_{other} PASSED",
    "After the {noun} we {verb} each {other} once more, and keep the {noun} as it was.",
)


def sections() -> list[str]:
    """All of the text in pieces that end with a line feed."""
    rng = random.Random("sample text")
    return ["".join(_line(rng) for _ in range(LINES_PER_SECTION)) for _ in range(NUM_SECTIONS)]


def sample_text() -> str:
    return "".join(sections())


def _line(rng: random.Random) -> str:
    """A line of a kind and with words drawn at random."""
    text = rng.choice(LINES).format(
        noun=rng.choice(NOUNS),
        other=rng.choice(NOUNS),
        verb=rng.choice(VERBS),
        number=rng.randint(1, 9000),
    )
    return f"{text}\n"
