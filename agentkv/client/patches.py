"""Replaces methods of other people's classes and clients, visibly and reversibly.

`context`, `sdk_clients` and `http_clients` list the methods; sessions install them, `instrumented`
names those in place, `uninstrument` restores all. A class whose module is not imported yet is
patched as soon as it is. Knows nothing of jobs or requests.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

ClientT = TypeVar("ClientT")
Method = Callable[..., Any]

_lock = threading.RLock()


class MethodPatch:
    """Replaces `owner.name` of a module by `wrap(original, patch)`, once at a time.

    If other code has replaced the method on top of ours, it cannot be restored. The replacement
    then stays below theirs, so it must pass every call on to the original unless `is_active`.
    """

    def __init__(
        self, module: str, owner: str, name: str, wrap: Callable[[Method, MethodPatch], Method]
    ) -> None:
        self.module = module
        self.is_active = False
        self._owner_name = owner
        self._name = name
        self._wrap = wrap
        self._owner: Any = None
        self._original: Method | None = None
        self._replacement: Method | None = None

    def __str__(self) -> str:
        public = [part for part in self.module.split(".") if not part.startswith("_")]
        return ".".join([*public, self._owner_name, self._name])

    @property
    def is_in_place(self) -> bool:
        """True if the method is replaced, perhaps below a replacement by other code."""
        return self.is_active and self._replacement is not None

    def install(self) -> None:
        """Replace the method now, or once its module is imported; not if it is replaced already."""
        with _lock:
            self.is_active = True
            _patches.setdefault(str(self), self)
            if self._replacement is None:
                self._owner = getattr(sys.modules.get(self.module), self._owner_name, None)
                if self._owner is None:
                    _import_watch.wait_for(self)
                    return
                self._original = getattr(self._owner, self._name)
                self._replacement = self._wrap(self._original, self)
                setattr(self._owner, self._name, self._replacement)

    def remove(self) -> None:
        """Restore the original, or deactivate the replacement where that is not possible."""
        with _lock:
            self.is_active = False
            _import_watch.forget(self)
            if self._owner and getattr(self._owner, self._name) is self._replacement:
                setattr(self._owner, self._name, self._original)
                self._original = self._replacement = None


_patches: dict[str, MethodPatch] = {}
"""Every patch that was ever installed, by its text."""


def instrumented() -> list[str]:
    """The methods that agentkv has replaced by now, such as `httpx.Client.send`.

    Those of a library that is not imported yet are missing, and come with its import.
    """
    return sorted(name for name, patch in _patches.items() if patch.is_in_place)


def uninstrument() -> None:
    """Restore every method that `instrument()` and sessions have replaced.

    Sessions with a client go on working; the next session replaces what it needs again.
    """
    for patch in list(_patches.values()):
        patch.remove()


class _ImportWatch(MetaPathFinder):
    """Installs patches that wait for the import of a module, once that is imported.

    It finds no module itself: it takes what the other finders found, and adds to its loader.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, list[MethodPatch]] = {}

    def wait_for(self, patch: MethodPatch) -> None:
        """Install this patch once its module is imported."""
        waiting = self._waiting.setdefault(patch.module, [])
        if patch not in waiting:
            waiting.append(patch)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def forget(self, patch: MethodPatch) -> None:
        """Wait no longer for the module of this patch."""
        waiting = self._waiting.get(patch.module, [])
        if patch in waiting:
            waiting.remove(patch)
        if not any(self._waiting.values()) and self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not self._waiting.get(fullname):
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        loader: Any = getattr(spec, "loader", None)
        if hasattr(loader, "exec_module"):
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._install(fullname)

            with suppress(AttributeError):  # else the next session installs them
                loader.exec_module = exec_module
        return spec

    def _install(self, module: str) -> None:
        try:
            with _lock:
                for patch in list(self._waiting.get(module, ())):
                    self.forget(patch)
                    patch.install()
        except Exception:
            logger.exception("agentkv could not instrument %s, which works as without it", module)


_import_watch = _ImportWatch()

_covered: dict[int, tuple[int, Mapping[str, Method]]] = {}
"""Open sessions and our methods on their client, by the id of a client given to a session."""


def cover(client: Any, methods: Mapping[str, Method]) -> None:
    """Replace methods of one client until `uncover`.

    A method that somebody else has replaced on the client stays as it is.
    """
    with _lock:
        num_sessions, ours = _covered.get(id(client), (0, {}))
        if not num_sessions:
            ours = {name: methods[name] for name in methods if name not in vars(client)}
            vars(client).update(ours)
        _covered[id(client)] = num_sessions + 1, ours


def uncover(client: Any) -> None:
    """Undo one `cover`; with the last one the client is as it was."""
    with _lock:
        num_sessions, ours = _covered.pop(id(client))
        if num_sessions > 1:
            _covered[id(client)] = num_sessions - 1, ours
            return
        for name, method in ours.items():
            if vars(client).get(name) is method:
                del vars(client)[name]


def is_covered(client: object) -> bool:
    """True between `cover` and `uncover`."""
    return id(client) in _covered


def copy_of(client: ClientT) -> ClientT:
    """A copy of a client that shares its connections, made without calling its constructor."""
    kind = type(client)
    twin = kind.__new__(kind)
    for name, value in vars(client).items():
        # client.chat and the like are cached, and refer to the client they were made for
        if not isinstance(getattr(kind, name, None), cached_property):
            vars(twin)[name] = value
    return twin
