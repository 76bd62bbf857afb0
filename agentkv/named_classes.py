"""Finds a class by the name that a flag, an environment variable, a setting or a table gives.

A name is a shipped one, that of an entry point, `package.module:Class`, or `path/to/file.py:Class`.
Used for policies.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from agentkv.errors import InputError, not_among

Kind = TypeVar("Kind")


def absolute_name(name: str) -> str:
    """The name with the file's path made absolute, for processes that run elsewhere."""
    path, _, class_name = name.rpartition(":")
    return f"{Path(path).resolve()}:{class_name}" if path.endswith(".py") else name


def label_of(name: str) -> str:
    """The name for tables, figures and metrics: of a class in a file or module, the class's own."""
    return name.rpartition(":")[2]


class NamedClasses(Generic[Kind]):
    """The subclasses of a base class that can be had by name, in addition to the shipped ones."""

    def __init__(self, what: str, base: type[Kind], group: str, shipped: Sequence[str]) -> None:
        """The option `what` takes a name; packages offer classes by entry points of `group`, which
        is also the public module that has `base`."""
        self._what = what
        self._base = base
        self._group = group
        self._shipped = shipped
        self._found: dict[str, type[Kind]] = {}

    def names(self) -> list[str]:
        """Return the names of shipped classes, then of those that installed packages offer."""
        offered = {point.name for point in entry_points(group=self._group)}
        return [*self._shipped, *sorted(offered.difference(self._shipped))]

    def may_be(self, name: str) -> bool:
        """True if the name is known, or spelled as a class in a module or file."""
        return ":" in name or name in self.names()

    def load(self, name: str) -> type[Kind]:
        """The class behind a name that is not a shipped one; each is imported once.

        Raises InputError for a name that leads to none, and for any error of the class's module.
        """
        name = absolute_name(name)
        if name not in self._found:
            self._found[name] = self._load(name)
        return self._found[name]

    def _load(self, name: str) -> type[Kind]:
        points = entry_points(group=self._group)
        target = next((point.value for point in points if point.name == name), name)
        module_name, _, class_name = target.rpartition(":")
        if not module_name:
            allowed = ", ".join([*self.names(), "FILE.py:CLASS and MODULE:CLASS"])
            raise InputError(f"{self._what}: {not_among(name, self.names(), allowed)}")
        module = self._import(target, module_name)
        found = getattr(module, class_name, None)
        if not (isinstance(found, type) and issubclass(found, self._base)):
            raise InputError(
                f"{self._what}: got {target!r}: {class_name or 'nothing'} is not a subclass of "
                f"{self._group}.{self._base.__name__}"
            )
        return found

    def _import(self, name: str, module_name: str) -> ModuleType:
        try:
            if not module_name.endswith(".py"):
                return importlib.import_module(module_name)
            path = Path(module_name)
            name_of_module = f"agentkv_{self._what}_{path.stem}"
            spec: Any = importlib.util.spec_from_file_location(name_of_module, path)
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module  # dataclasses and pydantic look their module up
            spec.loader.exec_module(module)
        except Exception as error:
            problem = f"got {name!r}: {type(error).__name__}: {error}"
            if isinstance(error, FileNotFoundError) and error.filename == module_name:
                problem = f"{module_name}: no such file"
            raise InputError(f"{self._what}: {problem}") from error
        return module
