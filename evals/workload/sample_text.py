"""Text such as coding agents see, the same on every machine: code, listings, test reports, prose.

Made from word lists by a fixed seed, so that no file of other people's text is needed. It reads and
tokenizes like the real thing, about three characters a token.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

NUM_SECTIONS = 160
"""About 140,000 characters, 50,000 tokens: long enough that windows drawn at random rarely meet."""


def _words(text: str) -> list[str]:
    return text.split()


_NOUNS = _words(
    "parser token schema query cache router loader signal table column index cursor buffer stream "
    "session request response header worker queue task result record field value config option "
    "template filter module package path file folder branch commit error warning message handler"
)
_VERBS = _words(
    "parse load read write build check merge split update remove create open close send receive "
    "find count sort group convert validate render flush reset return raise handle"
)
_QUALITIES = _words(
    "empty missing invalid nested optional default cached stale partial duplicate ordered unknown "
    "recursive lazy strict hidden local global previous current first last"
)


def sample_text() -> str:
    """All sections, each of a kind drawn at random."""
    return "\n".join(sections())


def sections(seed: int = 0) -> Iterator[str]:
    """A section at a time, of some 20 lines, ending in an end of line."""
    rng = random.Random(f"{seed} sample text")
    for _ in range(NUM_SECTIONS):
        make = rng.choice(_SECTIONS)
        yield "".join(f"{line}\n" for line in make(rng))


def _names(rng: random.Random) -> tuple[str, str, str]:
    return rng.choice(_VERBS), rng.choice(_QUALITIES), rng.choice(_NOUNS)


def _code(rng: random.Random) -> Iterator[str]:
    for _ in range(rng.randint(2, 4)):
        verb, quality, noun = _names(rng)
        other = rng.choice(_NOUNS)
        yield f"def {verb}_{quality}_{noun}({noun}, {other}=None):"
        yield f'    """{verb.capitalize()} the {quality} {noun} of this {other}."""'
        yield f"    if {noun} is None or not {noun}.{other}s:"
        yield f"        raise ValueError(f'{quality} {noun}: {{{other}!r}}')"
        yield f"    for {other} in sorted({noun}.{other}s, key=lambda item: item.{quality}):"
        yield f"        self.{verb}_{other}({other}, limit={rng.randint(1, 500)})"
        yield f"    return self._{quality}[{noun}.name]"
        yield ""


def _listing(rng: random.Random) -> Iterator[str]:
    yield f"total {rng.randint(40, 900)}"
    for _ in range(rng.randint(10, 24)):
        verb, quality, noun = _names(rng)
        size, day = rng.randint(90, 90_000), rng.randint(1, 28)
        yield f"-rw-r--r-- 1 dev dev {size:>6} Mar {day:>2} 10:30 {verb}_{quality}_{noun}.py"


def _test_report(rng: random.Random) -> Iterator[str]:
    for _ in range(rng.randint(8, 16)):
        verb, quality, noun = _names(rng)
        outcome = rng.choice(("PASSED", "PASSED", "PASSED", "FAILED", "SKIPPED"))
        yield f"tests/test_{noun}.py::test_{verb}_{quality}_{noun} {outcome}"
    verb, quality, noun = _names(rng)
    yield f"E   AssertionError: {verb} of the {quality} {noun}: {rng.randint(1, 99)} != 0"
    yield f"====== {rng.randint(1, 9)} failed, {rng.randint(20, 400)} passed ======"


def _prose(rng: random.Random) -> Iterator[str]:
    for _ in range(rng.randint(5, 10)):
        verb, quality, noun = _names(rng)
        other, another = rng.choice(_NOUNS), rng.choice(_QUALITIES)
        yield (
            f"When the {quality} {noun} is there, we {verb} the {another} {other} first; otherwise "
            f"the {other} stays {another} until the next {noun}."
        )


def _search_hits(rng: random.Random) -> Iterator[str]:
    for _ in range(rng.randint(8, 18)):
        verb, quality, noun = _names(rng)
        other = rng.choice(_NOUNS)
        yield f"src/{noun}/{other}.py:{rng.randint(1, 900)}: {verb}_{other}({quality}_{noun})"


_SECTIONS: tuple[Callable[[random.Random], Iterator[str]], ...] = (
    _code,
    _listing,
    _test_report,
    _prose,
    _search_hits,
)
