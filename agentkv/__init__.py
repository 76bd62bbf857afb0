"""Keep an LLM agent's KV cache warm while its tools run."""

from typing import TYPE_CHECKING, Any

from agentkv.client.context import current_job
from agentkv.client.delivery import flush
from agentkv.client.job import Job, JobSummary
from agentkv.client.patches import instrumented, uninstrument
from agentkv.client.session import Session, session
from agentkv.errors import AgentKVError, AgentKVServerError, ServerStartError, TagError
from agentkv.server.api import ServerAPI
from agentkv.tool_calls import ToolCall, parse_tool_calls

if TYPE_CHECKING:
    from agentkv.commands import CommandAnalysis, Program, analyze_command
    from agentkv.durations import DurationPredictor, Prediction
    from agentkv.integrations.frameworks import instrument

__version__ = "0.1.0"

__all__ = [
    "AgentKVError",
    "AgentKVServerError",
    "CommandAnalysis",
    "DurationPredictor",
    "Job",
    "JobSummary",
    "Prediction",
    "Program",
    "ServerAPI",
    "ServerStartError",
    "Session",
    "TagError",
    "ToolCall",
    "__version__",
    "analyze_command",
    "current_job",
    "flush",
    "instrument",
    "instrumented",
    "parse_tool_calls",
    "session",
    "uninstrument",
]

_LAZY = {
    "CommandAnalysis": "agentkv.commands",
    "DurationPredictor": "agentkv.durations",
    "Prediction": "agentkv.durations",
    "Program": "agentkv.commands",
    "analyze_command": "agentkv.commands",
    "instrument": "agentkv.integrations.frameworks",
}
"""Names whose modules a tagging client does not need, with the module imported on first use."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
