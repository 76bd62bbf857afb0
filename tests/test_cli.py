"""The `agentkv` command: a table of subcommands, each imported when it is called."""

from __future__ import annotations

import importlib
import io
import sys
from types import ModuleType

import pytest

from agentkv.cli import COMMANDS, main


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_main(name: str) -> None:
    """`main(argv) -> exit status`, in the module that the table names."""
    assert callable(importlib.import_module(COMMANDS[name][0]).main)


@pytest.mark.parametrize("argv", [[], ["serv"]])
def test_bad_usage_lists_the_commands(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, on standard error."""
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert all(name in error for name in COMMANDS)


def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A client-only installation is told which extra the command needs."""
    monkeypatch.setitem(COMMANDS, "verify-pin", ("no_such_package.verify", ""))
    assert main(["verify-pin"]) == 1
    assert "pip install 'agentkv-serving[bench]'" in capsys.readouterr().err


def test_help_is_not_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 0, on standard output."""
    assert main(["--help"]) == 0
    assert "verify-pin" in capsys.readouterr().out


def test_an_interrupted_command_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, with exit status 1: no traceback, at whatever stage it was."""

    def main_of_command(argv: list[str]) -> int:
        raise KeyboardInterrupt

    module = ModuleType("interrupted")
    module.main = main_of_command  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "interrupted", module)
    monkeypatch.setitem(COMMANDS, "predict", ("interrupted", ""))
    assert main(["predict", "ls"]) == 1
    assert capsys.readouterr().err == "agentkv predict: interrupted\n"


def test_what_the_terminal_cannot_show_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where standard output is not UTF-8: the rest is printed all the same."""
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    assert main(["predict", "echo héé"]) == 0
    assert printed.getvalue().startswith(b"echo h??\n  fast")


def test_a_closed_standard_output_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `agentkv ... >&-`: the exit status is all that is wanted."""
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["predict", "ls"]) == 0
