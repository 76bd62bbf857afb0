"""The golden values of a module, and the flag that replaces them."""

from __future__ import annotations

import pytest

from tests.golden.harness import Golden


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regenerate", action="store_true", help="replace the golden values")


@pytest.fixture(scope="module")
def golden(request: pytest.FixtureRequest) -> Golden:
    """The expected values of the test module that asks."""
    name = request.module.__name__.rpartition(".")[2].removeprefix("test_")
    is_regenerating = bool(request.config.getoption("--regenerate", default=False))
    return Golden(name, is_regenerating=is_regenerating)
