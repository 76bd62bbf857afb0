"""Shared by the tests of the SWE-bench commands: mini-swe-agent without banner and downloads."""

import os
from collections.abc import Iterator

import pytest

from agentkv.agents.sandbox import find_bubblewrap
from agentkv.evals.swebench.command import QUIET

# read when mini-swe-agent and litellm are imported, which test modules do after this
os.environ.update(QUIET)


@pytest.fixture(scope="session")
def bubblewrap() -> str:
    """The bwrap executable; tests that need one are skipped without it."""
    found = find_bubblewrap()
    if found is None:
        pytest.skip("no bubblewrap works here")
    return found


@pytest.fixture(scope="session", autouse=True)
def _key() -> Iterator[None]:
    """A run leaves its API key in the variable that litellm reads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "unset")
        yield
