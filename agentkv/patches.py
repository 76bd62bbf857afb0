"""Replaces a method of somebody else's class, and puts it back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

Method = Callable[..., Any]


class MethodPatch:
    """One method replaced by `wrap(original, patch)`, at most once at a time.

    When somebody else has replaced the method on top of us it cannot be put back. The replacement
    then stays beneath theirs, so it must hand every call to the original unless `is_active`.
    """

    def __init__(
        self, owner: type, name: str, wrap: Callable[[Method, MethodPatch], Method]
    ) -> None:
        self.is_active = False
        self._owner = owner
        self._name = name
        self._wrap = wrap
        self._lock = threading.Lock()
        self._original: Method | None = None
        self._replacement: Method | None = None

    def install(self) -> None:
        """Replace the method, unless that is done already."""
        with self._lock:
            self.is_active = True
            if self._replacement is None:
                self._original = getattr(self._owner, self._name)
                self._replacement = self._wrap(self._original, self)
                setattr(self._owner, self._name, self._replacement)

    def remove(self) -> None:
        """Put the original back, or fall silent where that is no longer possible."""
        with self._lock:
            self.is_active = False
            if getattr(self._owner, self._name) is self._replacement:
                setattr(self._owner, self._name, self._original)
                self._original = self._replacement = None
