"""Says when a job's spans are wanted, and what the client tells of jobs, turns and tools for them.

`agentkv.integrations.opentelemetry` makes them. It is imported for the first job whose spans are
wanted and not before, so that a client without OpenTelemetry neither needs nor pays for it.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

logger = logging.getLogger(__name__)

EXPORTER_VARIABLE = "OTEL_TRACES_EXPORTER"
"""OpenTelemetry's own variable that names an exporter of spans."""


@dataclass(frozen=True, slots=True)
class RequestShape:
    """A request as its span describes it: the conventions' operation, model and server."""

    operation: str
    model: str | None
    server_url: str
    is_vllm: bool
    """The server is known to be vLLM, since it has the plugin."""


class Span(Protocol):
    """The span of a turn or a tool. No method raises."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers that pass the trace on to the server."""

    def leave(self) -> None:
        """What the thread or task does from now on is not part of it; it may end later."""

    def end(self, error: object = None) -> None:
        """End it, perhaps with the exception or HTTP status that it failed with."""


class JobTrace(Protocol):
    """The span of a job, from which those of its turns and tools descend. No method raises."""

    def turn(self, number: int, request: RequestShape) -> Span | None: ...

    def tool(self, name: str) -> Span | None: ...

    def end(self, error: object, num_turns: int) -> None: ...


def open_trace(job_id: str, parent_job_id: str | None) -> JobTrace | None:
    """Open the span of a job that begins, if the program or the environment set up an exporter.

    Costs two look-ups where OpenTelemetry is not in use.
    """
    if "opentelemetry.trace" not in sys.modules and not os.environ.get(EXPORTER_VARIABLE):
        return None
    return cast(JobTrace | None, _opener()(job_id, parent_job_id))


@functools.cache
def _opener() -> Callable[..., Any]:
    try:
        module = importlib.import_module("agentkv.integrations.opentelemetry")
        return cast(Callable[..., Any], module.open_trace)
    except Exception as error:
        logger.warning(
            "agentkv: no spans, since OpenTelemetry cannot be imported (%s): run "
            "`pip install opentelemetry-sdk opentelemetry-exporter-otlp`, or unset %s",
            *(error, EXPORTER_VARIABLE),
        )
        return lambda *_: None
