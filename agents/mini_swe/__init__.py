"""mini-swe-agent whose KV cache stays warm while its commands run.

An existing user needs one flag, `--model-class agentkv.agents.mini_swe.AgentKVModel`. The agent
class adds what a model alone cannot know, above all the end of the loop; `python -m
agentkv.agents.mini_swe` is mini-swe-agent's SWE-bench batch with both in place.
"""

from .models import AgentKVAgent, AgentKVModel, AgentKVTextModel

__all__ = ["AgentKVAgent", "AgentKVModel", "AgentKVTextModel"]
