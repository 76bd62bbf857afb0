"""mini-swe-agent's SWE-bench batch with our agent and models in the places of its own.

Takes the options of `mini-extra swebench`. Each instance is a job: its turns are tagged, and its
cache is released when its loop ends.
"""

from __future__ import annotations

from typing import Any

from minisweagent.models import get_model, get_model_class, get_model_name
from minisweagent.models.litellm_model import LitellmModel
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel
from minisweagent.run.benchmarks import swebench
from minisweagent.run.benchmarks.utils.common import ProgressTrackingAgent

from .agent import AgentKVAgent
from .models import AgentKVModel, AgentKVTextModel

_OURS = {LitellmModel: AgentKVModel, LitellmTextbasedModel: AgentKVTextModel}


class AgentKVProgressAgent(AgentKVAgent, ProgressTrackingAgent):
    """Our agent, with the progress display of the batch."""


def tagged_model(input_model_name: str | None = None, config: dict[str, Any] | None = None) -> Any:
    """The model that mini-swe-agent would make, by our class where there is one for its class."""
    config = dict(config or {})
    name = get_model_name(input_model_name, config)
    wanted = get_model_class(name, config.get("model_class", ""))
    if ours := _OURS.get(wanted):
        config["model_class"] = f"{ours.__module__}.{ours.__name__}"
    return get_model(name, config)


def substitute() -> None:
    """Put our classes where the batch names its own.

    Source: minisweagent/run/benchmarks/swebench.py, process_instance (2.4.6).
    """
    for name in ("ProgressTrackingAgent", "get_model"):
        if not hasattr(swebench, name):
            raise ImportError(f"{swebench.__name__} has no {name} any more: it cannot be replaced")
    swebench.ProgressTrackingAgent = AgentKVProgressAgent
    swebench.get_model = tagged_model


if __name__ == "__main__":
    substitute()
    swebench.app(prog_name="python -m agentkv.agents.mini_swe")
