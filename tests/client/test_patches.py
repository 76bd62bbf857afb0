"""Functions of other packages are replaced when those are imported, and restored."""

from __future__ import annotations

import importlib
import importlib.util
import logging
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
        return "hello from " + cls.__name__
"""
TARGETS = ("greet", "Child.inherited", "Child.method", "Child.static", "Child.of_the_class")

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


def in_place(package: str) -> list[str]:
    """What is replaced in the package, as users see it."""
    return [name.removeprefix(f"{package}.") for name in instrumented() if package in name]


def words(package: str) -> list[str]:
    """What each function of the package says."""
    module = importlib.import_module(package)
    child = module.Child()
    return [
        module.greet(),
        child.inherited(),
        child.method(),
        child.static(),
        child.of_the_class(),
    ]


PLAIN = ["hello"] * 4 + ["hello from Child"]
LOUD = [word.upper() for word in PLAIN]


def test_a_package_imported_later_is_patched(package: str, make: Make) -> None:
    """Nothing is imported when patches are installed; the import then makes them."""
    make(*TARGETS)
    assert package not in sys.modules
    assert in_place(package) == []
    assert words(package) == LOUD
    assert in_place(package) == sorted(TARGETS)


def test_a_look_for_a_package_is_no_import(package: str, make: Make) -> None:
    """A program that asks whether a package is there gets its spec; patches go on waiting."""
    make(*TARGETS)
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    assert spec.origin.endswith("words.py")
    assert in_place(package) == []
    assert words(package) == LOUD


def test_the_watch_for_imports_ends(package: str, make: Make) -> None:
    """Neither removed patches nor those in place leave a finder behind."""
    finders = list(sys.meta_path)
    (patch,) = make("greet")
    assert sys.meta_path != finders
    patch.remove()
    assert sys.meta_path == finders
    assert words(package) == PLAIN
    sys.modules.pop(package)
    make("greet")
    importlib.import_module(package)
    assert sys.meta_path == finders


def test_a_package_imported_before_is_patched(package: str, make: Make) -> None:
    """What is imported already is replaced at once; a second install does nothing."""
    assert words(package) == PLAIN
    for patch in make(*TARGETS):
        patch.install()
    assert words(package) == LOUD


def test_everything_is_restored(package: str, make: Make) -> None:
    """After removal the module and the class hold what they held, and may be patched again."""
    module = importlib.import_module(package)
    before = dict(vars(module.Child))
    patches = make(*TARGETS)
    for patch in patches:
        patch.remove()
    assert dict(vars(module.Child)) == before
    assert words(package) == PLAIN
    assert in_place(package) == []
    for patch in patches:
        patch.install()
    assert words(package) == LOUD


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
    with caplog.at_level(logging.WARNING):
        make("Child.missing", "greet")
        assert words(package)[0] == "HELLO"
    (record,) = caplog.records
    assert "greeter.words.Child.missing" in record.getMessage()
    assert in_place(package) == ["greet"]


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
    assert words(package)[0] == "HELLO"
