"""Public fakes for tests of code that uses agentkv: no model, no vLLM, no network."""

from agentkv.client.server import forget_servers
from agentkv.testing.scripted_server import RecordedRequest, ScriptedReply, ScriptedServer

__all__ = ["RecordedRequest", "ScriptedReply", "ScriptedServer", "forget_servers"]
