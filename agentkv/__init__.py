"""Keep an LLM agent's KV cache warm while its tools run."""

from agentkv.current import current_job
from agentkv.errors import AgentKVError, AgentKVServerError, ServerStartError, TagError
from agentkv.feedback import flush
from agentkv.instrument import uninstrument
from agentkv.job import Job
from agentkv.server_api import ServerAPI
from agentkv.sessions import Session, session
from agentkv.summary import JobSummary
from agentkv.tool_calls import ToolCall, parse_tool_calls

__version__ = "0.1.0"

__all__ = [
    "AgentKVError",
    "AgentKVServerError",
    "Job",
    "JobSummary",
    "ServerAPI",
    "ServerStartError",
    "Session",
    "TagError",
    "ToolCall",
    "__version__",
    "current_job",
    "flush",
    "parse_tool_calls",
    "session",
    "uninstrument",
]
