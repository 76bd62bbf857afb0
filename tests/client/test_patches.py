"""Functions of other packages are replaced when those are imported, and restored."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentkv
from agentkv.client.patches import Method, Patch

SOURCE = """
def greet():
    return "hello"
class Base:
    def inherited(self):
        return "hello"
class Child(Base):
    def method(self):
        return "hello"
    @staticmethod
    def static():
        return "hello"
    @classmethod
    def of_the_class(cls):
        return "hello"
"""
TARGETS = ["Child.inherited", "Child.method", "Child.of_the_class", "Child.static", "greet"]


def shouting(original: Method, patch: Patch) -> Method:
    def shout(*args: Any) -> str:
        text: str = original(*args)
        return text.upper() if patch.is_active else text

    return shout


def install(*targets: str) -> list[Patch]:
    patches = [Patch(f"greeter:{target}", shouting) for target in targets]
    for patch in patches:
        patch.install()
    return patches


@pytest.fixture(autouse=True)
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that is not imported yet."""
    path = tmp_path / "greeter.py"
    path.write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield path
    sys.modules.pop("greeter", None)


def in_place() -> list[str]:
    """What is replaced in the module, as users see it."""
    return [name.removeprefix("greeter.") for name in agentkv.instrumented() if "greeter" in name]


def words() -> set[str]:
    """What the functions of the module say."""
    module: Any = importlib.import_module("greeter")
    child = module.Child()
    methods = (child.inherited, child.method, child.static, child.of_the_class)
    return {module.greet(), *(method() for method in methods)}


@pytest.mark.parametrize("is_imported", [False, True], ids=["later", "before"])
def test_functions_are_replaced_and_restored(is_imported: bool) -> None:
    """Once their module is imported, which installing does not do; then all is as before."""
    finders = list(sys.meta_path)
    if is_imported:
        before = {**vars(importlib.import_module("greeter").Child)}
    patches = install(*TARGETS)
    assert ("greeter" in sys.modules) == is_imported
    if not is_imported:
        spec = importlib.util.find_spec("greeter")  # a look for a module imports nothing
        assert spec is not None
        assert str(spec.origin).endswith("greeter.py")
        assert in_place() == []
    assert words() == {"HELLO"}
    assert in_place() == TARGETS
    patches[0].install()  # once more does nothing
    agentkv.uninstrument()
    assert (words(), in_place(), sys.meta_path) == ({"hello"}, [], finders)
    if is_imported:
        assert {**vars(importlib.import_module("greeter").Child)} == before
    for patch in patches:
        patch.install()
    assert words() == {"HELLO"}


def test_a_patch_below_another_replacement_turns_itself_off() -> None:
    """A function that other code has wrapped again stays there, and passes every call on."""
    (patch,) = install("greet")
    module: Any = importlib.import_module("greeter")
    ours = module.greet
    module.greet = lambda: f"{ours()}!"
    patch.remove()
    assert module.greet() == "hello!"
    patch.install()
    assert module.greet() == "HELLO!"


@pytest.mark.parametrize("is_imported", [False, True])
def test_a_missing_function_is_named_in_one_warning(
    caplog: pytest.LogCaptureFixture, is_imported: bool
) -> None:
    """A version of the package that lacks a function is named; its other functions are patched."""
    if is_imported:
        importlib.import_module("greeter")
    patches = install("Child.missing", "greet")
    assert words() == {"hello", "HELLO"}
    for patch in patches:
        patch.install()
    (record,) = caplog.records
    assert "greeter.Child.missing" in record.getMessage()
    assert in_place() == ["greet"]


def test_a_module_that_fails_to_import_fails_as_before(source: Path) -> None:
    """An error in a watched module looks as ever; a later import is patched."""
    install("greet")
    source.write_text("raise KeyError('early')")
    with pytest.raises(KeyError, match="early"):
        importlib.import_module("greeter")
    source.write_text(SOURCE)
    importlib.invalidate_caches()
    assert words() == {"hello", "HELLO"}
