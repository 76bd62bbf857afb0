"""What holds the rules of the house: phrases are found, tables of tests name files that exist.

The floor plan and the prose themselves are checked by `make check`.
"""

import re
import tomllib

import pytest

from tests.conftest import GROUP_OF, SLOW
from tests.house import floor_plan, words


@pytest.mark.parametrize(
    ("source", "number"),
    [
        ('"""Raise TypeError for what is no client."""', 1),
        ("# computed anew", 1),
        ('raise ValueError("it lasts so many seconds here")', 1),
        ('"""Raise TypeError unless it is a client."""', 0),
        ('x = "anew"', 0),
    ],
)
def test_phrases_are_found_in_prose_alone(source: str, number: int) -> None:
    """Docstrings, comments and messages are read; short strings, which are data, are not."""
    found = list(words.phrases_in(words.python_prose(source, is_test=False)))
    assert len(found) == number


def test_an_installation_leaves_the_vllm_that_is_there_alone() -> None:
    """What every installation of the package asks for is neither vLLM nor anything of torch."""
    project = tomllib.loads((floor_plan.ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^\w-]", each, maxsplit=1)[0] for each in project["dependencies"]}
    assert names == {"pydantic", "httpx", "tenacity"}


def test_files_that_are_grouped_or_slow_exist() -> None:
    """The tables of tests/conftest.py name files, none that was moved or removed."""
    paths = [name.partition("::")[0] for name in (*GROUP_OF, *SLOW)]
    assert [path for path in paths if not (floor_plan.ROOT / path).exists()] == []
