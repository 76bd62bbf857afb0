"""Makes the watchers of one engine, in the order in which they take an event."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentkv.errors import InputError, SettingsError
from agentkv.events import RulesFailed
from agentkv.guard import MAX_FAULTS, Fault
from agentkv.policies.settings import Settings
from agentkv.watchers import EventStream, make_watcher

from ..retention import Host
from ..retention.manager import RetentionManager
from .counters import Counters
from .kv_frees import KVFrees, KVSocket
from .log import EventLog, EventWriter
from .why import MissWatcher

logger = logging.getLogger(__name__)


class Watchers:
    """Holds counters, event log and misses, and those that a setting or flag asks for."""

    def __init__(
        self,
        settings: Settings,
        host: Host,
        retention: RetentionManager,
        counters: Counters,
        stream: EventStream,
        *,
        about: Mapping[str, Any],
        has_tracing: bool,
    ) -> None:
        """`counters` are on the stream already; `about` says what the server is.

        Raises SettingsError for a watcher, socket or file that cannot be made."""
        worker = retention.worker
        self.counters, self._worker = counters, worker
        folder, most = settings.run_output_dir, settings.record_events
        writer = None if folder is None else EventWriter(Path(folder), about)
        self.log = EventLog(max_events=most, clock=host.monotonic, writer=writer)
        self.misses = MissWatcher(
            host, counters, stream, worker, shows_prompts=settings.show_prompts
        )
        try:
            self._own = [make_watcher(*each) for each in settings.watchers.items()]
        except InputError as error:
            raise SettingsError(f"setting 'watchers': {error}") from error
        asked_for: list[object] = []
        if has_tracing:
            from .spans import DecisionSpans  # OpenTelemetry, which vLLM can do without

            asked_for.append(DecisionSpans())
        if settings.kv_socket is not None:
            self._own.append(KVSocket(settings.kv_socket))
        if any(hasattr(watcher, "on_kv_freed") for watcher in self._own):
            asked_for.append(KVFrees(stream))
        if most or writer is not None:
            asked_for.append(self.log)
        for watcher in (*asked_for, self.misses, *self._own):
            stream.add(watcher)

    def start(self) -> None:
        """Decode prompts in the background from now on, where they may be shown."""
        if self.misses.shows_prompts and not self._worker.is_started:
            self._worker.start()

    def close(self) -> None:
        """Write and deliver what must outlive the engine."""
        self.log.close()
        for watcher in self._own:
            watcher.close()


class FaultLog:
    """Logs the first fault of each watcher, and of the policy, with its traceback, and that it is
    switched off."""

    def __init__(self) -> None:
        self._failed: set[object] = set()

    def __call__(self, watcher: object, fault: Fault) -> None:
        """Take a watcher's fault."""
        kind = type(watcher)
        self._log(watcher, f"watcher {kind.__name__} of {kind.__module__}", fault)

    def on_rules_failed(self, event: RulesFailed) -> None:
        """Take a fault of the policy: stock's answer takes the place of its own."""
        self._log(None, f"policy {event.fault.rules}", event.fault)

    def _log(self, one: object, name: str, fault: Fault) -> None:
        if one not in self._failed:
            self._failed.add(one)
            logger.error(
                "agentkv: the %s failed in %s; serving goes on, without its answer",
                *(name, fault.question),
                exc_info=fault.error,
            )
        if fault.is_last:
            logger.error("agentkv: the %s failed %d times and is switched off", name, MAX_FAULTS)


class Gauges:
    """Measures what an engine's scheduler sends with vLLM's statistics."""

    def __init__(self, scheduler: Any) -> None:
        """`scheduler` is a RetainingScheduler, whose room lies above this one."""
        self._scheduler = scheduler

    def now(self) -> tuple[int, int, bool]:
        """Return what a change of the gauges is seen by."""
        scheduler = self._scheduler
        num_pins = len(scheduler.retention.pins)
        return scheduler.num_free_blocks(), num_pins, self.is_under_pressure

    @property
    def is_under_pressure(self) -> bool:
        """Tell whether memory ran short lately; an idle engine is not under pressure."""
        scheduler = self._scheduler
        has_requests = bool(scheduler.running or scheduler.queue)
        return has_requests and bool(scheduler.admission.is_memory_short)

    def payload(self) -> dict[str, Any]:
        """Return the gauges, and what was counted since the last call."""
        scheduler = self._scheduler
        pins, counters = scheduler.retention.pins, scheduler.watchers.counters
        usage, num_blocks = scheduler.usage(), max(scheduler.pool.num_blocks, 1)
        # none of it is used by a request while none is in the engine
        num_reclaimable = pins.num_exclusive_blocks if scheduler.requests else pins.num_blocks
        reclaimable = min(usage, num_reclaimable / num_blocks)
        gauges = {
            "pinned_jobs": len(pins),
            "pinned_blocks": pins.num_blocks,
            "held_kv_perc": pins.num_blocks / num_blocks,
            "reclaimable_kv_perc": reclaimable,
            "running_kv_perc": usage - reclaimable,
            "live_jobs": len(scheduler.retention.jobs),
            "under_pressure": int(self.is_under_pressure),
        }
        # also with one engine: those of a dense model do not know that there are others
        return {"gauges": gauges, **counters.take_delta()}
