"""Windows of recent observations by key, bounded in number and size.

Knows nothing of what a window computes nor of what the keys mean.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

WINDOW = 200
"""Latest observations kept per key. Source: ContextServe."""


class Window(Protocol):
    """The latest observations of one key; `state` is JSON data, and `restore` takes it back."""

    def __len__(self) -> int: ...

    def state(self) -> Any: ...

    def restore(self, state: Any) -> None: ...


W = TypeVar("W", bound=Window)


class RecentWindows(Generic[W]):
    """At most `limit` windows; the one not observed for longest is forgotten first."""

    def __init__(self, new_window: Callable[[], W], limit: int) -> None:
        self._new_window = new_window
        self._limit = limit
        self._windows: OrderedDict[str, W] = OrderedDict()

    def __len__(self) -> int:
        return len(self._windows)

    def get(self, key: str) -> W | None:
        """The window of a key, None if there is none."""
        return self._windows.get(key)

    def to_observe(self, key: str) -> W:
        """The window of a key, made if missing, and from now on the latest observed."""
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = self._new_window()
            if len(self._windows) > self._limit:
                self._windows.popitem(last=False)
        else:
            self._windows.move_to_end(key)
        return window

    def state(self) -> dict[str, Any]:
        return {key: window.state() for key, window in self._windows.items()}

    def restore(self, state: Any) -> None:
        """Raises TypeError or ValueError where the data does not fit."""
        if not isinstance(state, dict):
            raise TypeError(f"windows are saved by key, got {state!r:.100}")
        for key, window_state in state.items():
            self.to_observe(key).restore(window_state)
