"""mini-swe-agent's SWE-bench batch with our agent and models in place of its own.

Used by `python -m agentkv.agents.mini_swe` and by `agentkv swebench run`.
"""

from __future__ import annotations

from typing import Any

from minisweagent.models import get_model, get_model_class, get_model_name
from minisweagent.models.litellm_model import LitellmModel
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel
from minisweagent.run.benchmarks import swebench
from minisweagent.run.benchmarks.utils.common import ProgressTrackingAgent

from .models import AgentKVAgent, AgentKVModel, AgentKVTextModel

_OURS = {LitellmModel: AgentKVModel, LitellmTextbasedModel: AgentKVTextModel}


class AgentKVProgressAgent(AgentKVAgent, ProgressTrackingAgent):
    """Our agent with the batch's progress display."""


def tagged_model(input_model_name: str | None = None, config: dict[str, Any] | None = None) -> Any:
    """Build the model that mini-swe-agent would, by our class if it replaces the one chosen."""
    config = dict(config or {})
    name = get_model_name(input_model_name, config)
    wanted = get_model_class(name, config.get("model_class", ""))
    if ours := _OURS.get(wanted):
        config["model_class"] = f"{ours.__module__}.{ours.__name__}"
    return get_model(name, config)


def substitute(**others: Any) -> None:
    """Set our classes, and `others`, under the names that the batch's `process_instance` uses.

    Raises ImportError if the batch no longer has a name. Source:
    minisweagent/run/benchmarks/swebench.py, process_instance (2.4.6).
    """
    ours = {"ProgressTrackingAgent": AgentKVProgressAgent, "get_model": tagged_model, **others}
    for name, replacement in ours.items():
        if not hasattr(swebench, name):
            raise ImportError(f"{swebench.__name__} has no {name} any more: it cannot be replaced")
        setattr(swebench, name, replacement)
