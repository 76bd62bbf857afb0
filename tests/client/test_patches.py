"""Functions of other packages are replaced when those are imported, and restored."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentkv.client.patches import Method, Patch, instrumented

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

Make = Callable[..., list[Patch]]


def shouting(original: Method, patch: Patch) -> Method:
    def shout(*args: Any) -> str:
        text: str = original(*args)
        return text.upper() if patch.is_active else text

    return shout


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package that is not imported yet."""
    (tmp_path / "greeter").mkdir()
    (tmp_path / "greeter" / "__init__.py").write_text("")
    (tmp_path / "greeter" / "words.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "greeter.words"
    for name in ("greeter", "greeter.words"):
        sys.modules.pop(name, None)


@pytest.fixture
def make(package: str) -> Iterator[Make]:
    """Patches of the package, installed; removed in the end."""
    made: list[Patch] = []

    def make(*targets: str) -> list[Patch]:
        patches = [Patch(f"{package}:{target}", shouting) for target in targets]
        made.extend(patches)
        for patch in patches:
            patch.install()
        return patches

    yield make
    for patch in made:
        patch.remove()


def in_place() -> list[str]:
    """What is replaced in the package, as users see it."""
    return [name.removeprefix("greeter.words.") for name in instrumented() if "greeter" in name]


def words(package: str) -> set[str]:
    """What the functions of the package say."""
    module = importlib.import_module(package)
    child = module.Child()
    return {
        module.greet(),
        child.inherited(),
        child.method(),
        child.static(),
        child.of_the_class(),
    }


@pytest.mark.parametrize("is_imported", [False, True], ids=["later", "before"])
def test_functions_are_replaced_and_restored(package: str, make: Make, is_imported: bool) -> None:
    """Once the package is imported, which installing does not do; then all is as before."""
    finders = list(sys.meta_path)
    if is_imported:
        before = {**vars(importlib.import_module(package).Child)}
    patches = make(*TARGETS)
    assert (package in sys.modules) == is_imported
    if not is_imported:
        spec = importlib.util.find_spec(package)  # a look for a package imports nothing
        assert spec is not None
        assert str(spec.origin).endswith("words.py")
        assert in_place() == []
    assert words(package) == {"HELLO"}
    assert sys.meta_path == finders
    assert in_place() == TARGETS
    for patch in patches:
        patch.install()  # once more does nothing
        patch.remove()
    assert words(package) == {"hello"}
    assert in_place() == []
    if is_imported:
        assert {**vars(importlib.import_module(package).Child)} == before
    for patch in patches:
        patch.install()
    assert words(package) == {"HELLO"}


def test_a_patch_that_is_removed_waits_no_more(package: str, make: Make) -> None:
    """Its package is imported as it is, and no finder stays behind."""
    finders = list(sys.meta_path)
    (patch,) = make("greet")
    assert sys.meta_path != finders
    patch.remove()
    assert sys.meta_path == finders
    assert words(package) == {"hello"}


def test_a_patch_below_another_replacement_turns_itself_off(package: str, make: Make) -> None:
    """A function that other code has wrapped again stays there, and passes every call on."""
    (patch,) = make("greet")
    module: Any = importlib.import_module(package)
    ours = module.greet
    module.greet = lambda: f"{ours()}!"
    patch.remove()
    assert module.greet() == "hello!"
    patch.install()
    assert module.greet() == "HELLO!"


@pytest.mark.parametrize("is_imported", [False, True])
def test_a_missing_function_is_named_in_one_warning(
    package: str, make: Make, caplog: pytest.LogCaptureFixture, is_imported: bool
) -> None:
    """A version of the package that lacks a function is named; its other functions are patched."""
    if is_imported:
        importlib.import_module(package)
    patches = make("Child.missing", "greet")
    assert words(package) == {"hello", "HELLO"}
    for patch in patches:
        patch.install()
    (record,) = caplog.records
    assert "greeter.words.Child.missing" in record.getMessage()
    assert in_place() == ["greet"]


def test_a_module_that_fails_to_import_fails_as_before(
    package: str, make: Make, tmp_path: Path
) -> None:
    """An error in a watched module, or its absence, looks as ever; a later import is patched."""
    make("greet")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'greeter\.none'"):
        importlib.import_module("greeter.none")
    source = tmp_path / "greeter" / "words.py"
    source.write_text("raise KeyError('early')")
    with pytest.raises(KeyError, match="early"):
        importlib.import_module(package)
    source.write_text(SOURCE)
    importlib.invalidate_caches()
    assert words(package) == {"hello", "HELLO"}
