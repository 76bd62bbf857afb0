"""Watchers: the base class to write one, and the stream that hands it the events of an engine.

The plugin emits one event for each thing that happens to a job (see agentkv.events); counters, the
event log and watchers of your own take them. Importable without vLLM.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

from agentkv.errors import InputError
from agentkv.events import EVENTS, Event, handler_name
from agentkv.guard import MAX_FAULTS, Fault
from agentkv.named_classes import NamedClasses

P = ParamSpec("P")


class Watcher:
    """Is told what happens to jobs. Subclass it, and name the class in the setting `watchers`.

    Give it a method for each kind of event that it wants, such as `on_finished(self, event)`, or
    `on_event(self, event)` for all others that the event log has; the options in the setting go to
    its constructor. Called on the engine's main thread: it must answer within microseconds, and
    must change nothing of what it is shown. An exception costs the watcher that event; after 20 of
    them it is switched off.
    """

    def close(self) -> None:
        """The engine ends."""


class EventStream:
    """Hands each event to the watchers that want it; without any, no event is made."""

    def __init__(self, on_fault: Callable[[object, Fault], None]) -> None:
        """`on_fault` takes a watcher that raised an exception, and the fault."""
        self._handlers: dict[object, list[tuple[Callable[[Any], None], object]]] = {}
        self._num_faults: Counter[int] = Counter()
        self._on_fault = on_fault

    def add(self, watcher: object) -> None:
        """Tell a watcher of all further events, after those added before it.

        Raises InputError for a method `on_...` that no event has.
        """
        names = {handler_name(kind): kind for kind in EVENTS}
        methods = {name for name in dir(watcher) if name.startswith("on_")} - {"on_event"}
        if unknown := sorted(methods - names.keys()):
            raise InputError(
                f"watcher {type(watcher).__name__}: there is no event for {', '.join(unknown)}; "
                f"there are {', '.join(names)}"
            )
        for name, kind in names.items():
            general = getattr(watcher, "on_event", None) if kind.name else None
            handler = getattr(watcher, name, general)
            if handler is not None:
                self._handlers.setdefault(kind, []).append((handler, watcher))

    def emit(self, kind: Callable[P, Event], *args: P.args, **kwargs: P.kwargs) -> None:
        """Make an event of this kind and hand it out, if anybody wants it."""
        handlers = self._handlers.get(kind)
        if handlers is not None:
            event = kind(*args, **kwargs)
            for handler, watcher in handlers:
                try:
                    handler(event)
                except BaseException as error:
                    self._failed(watcher, event, error)

    def _failed(self, watcher: object, event: Event, error: BaseException) -> None:
        self._num_faults[id(watcher)] += 1
        is_last = self._num_faults[id(watcher)] == MAX_FAULTS
        if is_last:
            for kind, handlers in list(self._handlers.items()):
                self._handlers[kind] = [each for each in handlers if each[1] is not watcher]
        fault = Fault(
            type(watcher).__name__,
            handler_name(type(event)),
            error,
            is_late=False,
            is_last=is_last,
        )
        self._on_fault(watcher, fault)


_CLASSES = NamedClasses("watcher", Watcher, "agentkv.watchers", ())


def make_watcher(name: str, options: Mapping[str, Any]) -> Watcher:
    """The watcher of that name (FILE.py:CLASS or MODULE:CLASS) with its options.

    Raises InputError for a name that leads to no watcher, and for any error of its constructor.
    """
    kind = _CLASSES.load(name)
    try:
        return kind(**options)
    except Exception as error:
        raise InputError(f"watcher {name!r}: {type(error).__name__}: {error}") from error
