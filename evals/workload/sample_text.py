"""Text such as coding agents see, the same on every machine: code, listings, test reports, prose.

Made from word lists by a fixed seed, so that no file of other people's text is needed. It reads and
tokenizes like the real thing, about three characters a token.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

NUM_SECTIONS = 160
"""About 140,000 characters, 50,000 tokens: long enough that windows drawn at random rarely meet."""
_WORDS = {
    "noun": (
        "parser token schema query cache router loader signal table column index cursor buffer "
        "stream session request response header worker queue task result record field value config "
        "option template filter module package path file folder branch commit error warning message"
    ),
    "verb": (
        "parse load read write build check merge split update remove create open close send "
        "receive find count sort group convert validate render flush reset return raise handle"
    ),
    "quality": (
        "empty missing invalid nested optional default cached stale partial duplicate ordered "
        "unknown recursive lazy strict hidden local global previous current first last"
    ),
    "outcome": "PASSED PASSED PASSED FAILED SKIPPED",
}
_LISTS = {name: words.split() for name, words in _WORDS.items()}
_KINDS = (
    (
        *(2, 4),
        "def {verb}_{quality}_{noun}({noun}, {noun2}=None):\n"
        '    """{verb2} the {quality} {noun} of this {noun2}."""\n'
        "    if {noun} is None or not {noun}.{noun2}s:\n"
        "        raise ValueError(f'{quality} {noun}: {{{noun2}!r}}')\n"
        "    for {noun2} in sorted({noun}.{noun2}s, key=lambda item: item.{quality}):\n"
        "        self.{verb}_{noun2}({noun2}, limit={number})\n"
        "    return self._{quality}[{noun}.name]\n\n",
    ),
    (10, 24, "-rw-r--r-- 1 dev dev {number:>6} Mar {day:>2} 10:30 {verb}_{quality}_{noun}.py\n"),
    (8, 16, "tests/test_{noun}.py::test_{verb}_{quality}_{noun} {outcome}\n"),
    (
        *(5, 10),
        "Once the {quality} {noun} exists, we {verb} the {quality2} {noun2} first; otherwise the "
        "{noun2} stays {quality2} until the next {noun}.\n",
    ),
    (8, 18, "src/{noun}/{noun2}.py:{number}: {verb}_{noun2}({quality}_{noun})\n"),
)
"""Kinds of sections: fewest and most repetitions, and what is repeated with other words."""


def sample_text() -> str:
    """All sections, each of a kind drawn at random."""
    return "\n".join(sections())


def sections(seed: int = 0) -> Iterator[str]:
    """A section at a time, of some 20 lines, ending in an end of line."""
    rng = random.Random(f"{seed} sample text")
    for _ in range(NUM_SECTIONS):
        least, most, text = rng.choice(_KINDS)
        yield "".join(text.format(**_drawn(rng)) for _ in range(rng.randint(least, most)))


def _drawn(rng: random.Random) -> dict[str, str | int]:
    """A word of each list, a second one under its name and 2, a number and a day."""
    words = {f"{name}{n}": rng.choice(words) for name, words in _LISTS.items() for n in ("", "2")}
    return {**words, "number": rng.randint(1, 90_000), "day": rng.randint(1, 28)}
