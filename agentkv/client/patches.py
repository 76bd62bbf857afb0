"""Replaces functions of other packages, visibly and reversibly.

`context` and the frameworks list patches; sessions and `instrument` install them, `instrumented`
names those in place, `uninstrument` restores all. A module that is not imported yet is patched as
soon as it is.
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
from typing import Any, ParamSpec, TypeVar

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
Method = Callable[..., Any]

_lock = threading.RLock()


def replace(owner: Any, name: str, function: Any) -> Callable[[], bool]:
    """Put a function in place of one of a module, a class or an object, and return what undoes it.

    That is False if other code has replaced ours meanwhile, which then stays below it.
    """
    own = vars(owner).get(name)  # None if a class lends it
    setattr(owner, name, function)

    def undo() -> bool:
        is_ours = vars(owner).get(name) is function
        if is_ours and own is None:
            delattr(owner, name)
        elif is_ours:
            setattr(owner, name, own)
        return is_ours

    return undo


class Patch:
    """Replaces one function of another package by `wrap(original, patch)`, once at a time.

    target: `module:Class.method` or `module:function`. The module is not imported because of it.

    Where other code has wrapped our function, it stays: so it must pass every call on to the
    original unless `is_active`.
    """

    def __init__(self, target: str, wrap: Callable[[Method, Patch], Method]) -> None:
        self.target = target
        self.module, _, self._path = target.partition(":")
        self.is_active = False
        self._wrap = wrap
        self._undo: Callable[[], bool] | None = None
        self._is_absent = False

    def __str__(self) -> str:
        return self.target.replace(":", ".")

    @property
    def is_in_place(self) -> bool:
        """True if the function is replaced, perhaps below a replacement by other code."""
        return self.is_active and self._undo is not None

    def install(self) -> None:
        """Replace the function now, or once its module is imported; a second call does nothing.

        A module without the function is left as it is, with a warning.
        """
        if self.is_in_place:
            return
        with _lock:
            _patches[self.target] = self
            self.is_active = True
            module = sys.modules.get(self.module)
            # another thread may be importing it: the next session installs the patch then
            if module is not None and not getattr(module.__spec__, "_initializing", False):
                self.install_in(module)
            elif _import_watch not in sys.meta_path:
                sys.meta_path.insert(0, _import_watch)

    def install_in(self, module: ModuleType) -> None:
        """Replace the function in its module."""
        if not self.is_active or self._undo is not None or self._is_absent:
            return
        *outer, name = self._path.split(".")
        try:
            owner: Any = functools.reduce(getattr, outer, module)
            found = inspect.getattr_static(owner, name)
        except AttributeError as error:
            self._is_absent = True
            logger.warning("agentkv: cannot follow %s (%s); all else is as before", self, error)
            return
        function = getattr(found, "__func__", found)  # of a classmethod or staticmethod
        ours: Any = self._wrap(function, self)
        self._undo = replace(owner, name, ours if function is found else type(found)(ours))

    def remove(self) -> None:
        """Restore the original, or deactivate the replacement where that is not possible."""
        with _lock:
            self.is_active = False
            if self._undo is not None and self._undo():
                self._undo = None


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
    if _import_watch in sys.meta_path:
        sys.meta_path.remove(_import_watch)


_has_logged_failure = False


def log_failure(what: str) -> None:
    """Log the exception being handled, once per process: ours must not break the agent."""
    global _has_logged_failure
    if not _has_logged_failure:
        _has_logged_failure = True
        logger.exception("agentkv %s; the agent is not affected", what)


def harmless(what: str) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
    """Decorate a function of ours: its errors are logged as `what`, and it returns None then."""

    def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R | None:
            try:
                return function(*args, **kwargs)
            except Exception:
                log_failure(what)
                return None

        return guarded

    return decorate


class _ImportWatch(MetaPathFinder):
    """Installs patches behind their modules' imports, from the first that waits to `uninstrument`.

    It finds no module itself: it takes what the other finders found, and adds to its loader.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if all(patch.module != fullname for patch in list(_patches.values())):
            return None
        others = (finder for finder in list(sys.meta_path) if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        loader: Any = getattr(spec, "loader", None)
        with suppress(AttributeError):  # a loader of another kind: the next session installs
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._install_in(module)

            loader.exec_module = exec_module
        return spec

    @harmless("cannot follow a module")
    def _install_in(self, module: ModuleType) -> None:
        with _lock:
            for patch in _patches.values():
                if patch.module == module.__name__:
                    patch.install_in(module)


_import_watch = _ImportWatch()
