"""Replaces functions of other packages, visibly and reversibly.

`context` and `clients` list patches; sessions and `instrument` install them, `instrumented` names
those in place, `uninstrument` restores all. A module that is not imported yet is patched as soon as
it is.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

logger = logging.getLogger(__name__)

Method = Callable[..., Any]

_lock = threading.RLock()


class Patch:
    """Replaces one function of another package by `wrap(original, patch)`, once at a time.

    target: `module:Class.method` or `module:function`. The module is not imported because of it.

    If other code has replaced the function on top of ours, it cannot be restored. The replacement
    then stays below theirs, so it must pass every call on to the original unless `is_active`.
    """

    def __init__(self, target: str, wrap: Callable[[Method, Patch], Method]) -> None:
        self.target = target
        self.module, _, self._path = target.partition(":")
        self.is_active = False
        self._wrap = wrap
        self._owner: Any = None
        self._original: Any = None
        self._replacement: Any = None
        self._is_absent = False

    def __str__(self) -> str:
        public = [part for part in self.module.split(".") if not part.startswith("_")]
        return ".".join([*public, self._path])

    @property
    def is_in_place(self) -> bool:
        """True if the function is replaced, perhaps below a replacement by other code."""
        return self.is_active and self._replacement is not None

    def install(self) -> None:
        """Replace the function now, or once its module is imported; a second call does nothing.

        A module without the function is left as it is, with a warning.
        """
        with _lock:
            _patches[self.target] = self
            self.is_active = True
            module = sys.modules.get(self.module)
            # another thread may be importing it
            is_whole = not getattr(getattr(module, "__spec__", None), "_initializing", False)
            if module is None or not self.install_in(module, is_whole=is_whole):
                _import_watch.wait_for(self)

    def install_in(self, module: ModuleType, *, is_whole: bool) -> bool:
        """Replace the function in its module; False if a later part may define it."""
        if self._replacement is not None or self._is_absent:
            return True
        *outer, name = self._path.split(".")
        try:
            owner: Any = functools.reduce(getattr, outer, module)
            found = inspect.getattr_static(owner, name)
        except AttributeError as error:
            if is_whole:
                self._is_absent = True
                logger.warning(
                    "agentkv: cannot follow %s (%s); the program is not affected", self, error
                )
            return is_whole
        if isinstance(found, classmethod | staticmethod):
            self._replacement = type(found)(self._wrap(found.__func__, self))
        else:
            self._replacement = self._wrap(found, self)
        self._owner, self._original = owner, vars(owner).get(name)
        setattr(owner, name, self._replacement)
        return True

    def remove(self) -> None:
        """Restore the original, or deactivate the replacement where that is not possible."""
        with _lock:
            self.is_active = False
            _import_watch.forget(self)
            name = self._path.rpartition(".")[2]
            if self._owner is None or vars(self._owner).get(name) is not self._replacement:
                return
            if self._original is None:  # the class inherits it
                delattr(self._owner, name)
            else:
                setattr(self._owner, name, self._original)
            self._owner = self._original = self._replacement = None


_patches: dict[str, Patch] = {}
"""Every patch that was ever installed, by its target."""


def instrumented() -> list[str]:
    """The functions of other packages that agentkv has replaced, such as `httpx.Client.send`.

    Those of a package that is not imported yet are missing, and come with its import.
    """
    return sorted(str(patch) for patch in list(_patches.values()) if patch.is_in_place)


def uninstrument() -> None:
    """Restore every function that `instrument()` and sessions have replaced.

    Sessions with a client go on working; the next session replaces what it needs again.
    """
    for patch in list(_patches.values()):
        patch.remove()


class _ImportWatch(MetaPathFinder):
    """Installs patches that wait for the import of a module, once that is imported.

    It finds no module itself: it takes what the other finders found, and adds to its loader.
    """

    def __init__(self) -> None:
        self._waiting: list[Patch] = []

    def wait_for(self, patch: Patch) -> None:
        """Install this patch once its module is imported."""
        if patch not in self._waiting:
            self._waiting.append(patch)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def forget(self, patch: Patch) -> None:
        """Wait no longer for the module of this patch."""
        with suppress(ValueError):
            self._waiting.remove(patch)
        if not self._waiting and self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not any(patch.module == fullname for patch in self._waiting):
            return None
        others = (finder for finder in list(sys.meta_path) if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        loader: Any = getattr(spec, "loader", None)
        if hasattr(loader, "exec_module") and not isinstance(loader, type):
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._install_in(module)

            with suppress(AttributeError):  # a loader without attributes: the next session installs
                loader.exec_module = exec_module
        return spec

    def _install_in(self, module: ModuleType) -> None:
        try:
            with _lock:
                for patch in [each for each in self._waiting if each.module == module.__name__]:
                    self.forget(patch)
                    patch.install_in(module, is_whole=True)
        except Exception:
            log_failure(f"cannot follow {module}")


_import_watch = _ImportWatch()

_has_logged_failure = False


def log_failure(what: str) -> None:
    """Log the exception being handled, once per process: ours must not break the agent."""
    global _has_logged_failure
    if not _has_logged_failure:
        _has_logged_failure = True
        logger.exception("agentkv %s; the agent is not affected", what)
