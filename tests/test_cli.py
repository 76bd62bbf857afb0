"""The `agentkv` command: its table, its exit statuses, and what it does with its output."""

import importlib
import io
import sys
from types import ModuleType

import pytest

from agentkv.cli import COMMANDS, main


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_main(name: str) -> None:
    """The module that the table names has `main(argv) -> exit status`."""
    assert callable(importlib.import_module(f"agentkv.{COMMANDS[name][0]}").main)


@pytest.mark.parametrize(("argv", "status"), [([], 2), (["--help"], 0)])
def test_the_commands_are_listed(
    argv: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Help goes to standard output with status 0; bad usage to standard error with status 2. A
    thirteenth command names the one that leaves."""
    assert main(argv) == status
    listed = capsys.readouterr()[status // 2]
    assert all(f"  {name} " in listed for name in COMMANDS)
    assert len(COMMANDS) <= 12


@pytest.mark.parametrize(
    ("name", "extras"), [("verify-pin", "bench"), ("swebench", "bench,swebench")]
)
def test_a_missing_package_is_reported_with_the_extra_to_install(
    name: str, extras: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A client-only installation says which extra a command needs."""
    monkeypatch.setitem(COMMANDS, name, ("no_such_package.main", *COMMANDS[name][1:]))
    assert main([name]) == 1
    assert f"pip install '.[{extras}]'" in capsys.readouterr().err


def test_an_interrupted_command_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends any command with one line and exit status 1, without a traceback."""

    def main_of_command(argv: list[str]) -> int:
        raise KeyboardInterrupt

    module = ModuleType("interrupted")
    module.main = main_of_command  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "agentkv.interrupted", module)
    monkeypatch.setitem(COMMANDS, "plot", ("interrupted", "", ""))
    assert main(["plot", "x"]) == 1
    assert capsys.readouterr().err == "agentkv plot: interrupted\n"


def test_characters_that_the_terminal_lacks_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """If standard output is not UTF-8, the rest is printed all the same."""
    printed = io.BytesIO()
    says_hello(monkeypatch)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    assert main(["plot", "x"]) == 0
    assert printed.getvalue() == b"h??\n"


def test_a_closed_standard_output_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """`agentkv ... >&-` prints nothing and keeps its exit status."""
    says_hello(monkeypatch)
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["plot", "x"]) == 0


def says_hello(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that prints two letters outside ASCII."""
    module = ModuleType("hello")
    module.main = lambda argv: print("héé") or 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "agentkv.hello", module)
    monkeypatch.setitem(COMMANDS, "plot", ("hello", "", ""))
