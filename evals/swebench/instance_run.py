"""One instance from its environment to its patch: mini-swe-agent with our model and agent."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .environments import EnvironmentPlan, open_environment
from .instance_state import STARTING, THINKING, InstanceState, RunStoppedError, WatchedEnvironment
from .instances import Instance

_SHOWN_CHARS = 1000
_DISK_FULL = ("No space left on device", "Disk quota exceeded")


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """What all instances of a run share; `config` and `model` are mini-swe-agent's."""

    config: Mapping[str, Any]
    model: Mapping[str, Any]
    environments: EnvironmentPlan
    clock: Callable[[], float]
    is_stopped: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class PlayedInstance:
    """An instance that ended in whatever way; `row` is its line in the run's file."""

    row: dict[str, Any]
    patch: str
    trajectory: dict[str, Any] | None


def play(
    setup: AgentSetup, instance: Instance, job_id: str, state: InstanceState
) -> PlayedInstance | None:
    """Play one instance to its end; None if the run was stopped before.

    Raises OSError where the disk is full: what goes wrong then says nothing about the instance.
    Everything else that goes wrong is the instance's result.
    """
    state.started_s = setup.clock()
    state.status = STARTING
    info: Mapping[str, Any] = {}
    error: Exception | None = None
    try:
        info = _run_agent(setup, instance, job_id, state)
    except RunStoppedError:
        return None
    except Exception as caught:
        if is_disk_full(caught):
            raise OSError(f"{instance.instance_id}: {caught}") from caught
        if setup.is_stopped():  # cut by the end of the run, not by anything of its own
            return None
        error = caught
    finally:
        state.environment = None
        state.ended_s = setup.clock()
    status = f"error:{type(error).__name__}" if error else str(info.get("exit_status"))
    return PlayedInstance(
        row=_row(instance, job_id, state, status, error),
        patch=str(info.get("submission") or ""),
        trajectory=_trajectory(instance, state, status, error),
    )


def is_disk_full(error: BaseException | None) -> bool:
    """True if this, or what it came from, is for want of space; a program's words count too."""
    while error is not None:
        if any(words in str(error) for words in _DISK_FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


def _run_agent(
    setup: AgentSetup, instance: Instance, job_id: str, state: InstanceState
) -> Mapping[str, Any]:
    from minisweagent.agents import get_agent
    from minisweagent.models import get_model

    model = get_model(config={**setup.model, "agentkv_job_id": job_id})
    with open_environment(setup.environments, instance, setup.config) as environment:
        state.environment = environment
        watched = WatchedEnvironment(environment, state, setup.is_stopped)
        agent_config = {**setup.config["agent"], "instance_id": instance.instance_id}
        state.agent = get_agent(model, watched, agent_config)
        state.status = THINKING
        info: Mapping[str, Any] = state.agent.run(instance.problem_statement)
        return info


def _row(
    instance: Instance, job_id: str, state: InstanceState, status: str, error: Exception | None
) -> dict[str, Any]:
    turns = state.turns
    return {
        "instance_id": instance.instance_id,
        "job_id": job_id,
        "start_s": state.started_s,
        "end_s": state.ended_s,
        "exit_status": status,
        "error": None if error is None else str(error)[:_SHOWN_CHARS] or repr(error),
        "num_turns": len(turns),
        "turns": turns,
    }


def _trajectory(
    instance: Instance, state: InstanceState, status: str, error: Exception | None
) -> dict[str, Any] | None:
    """As mini-swe-agent saves it; None if there was no agent yet."""
    if state.agent is None:
        return None
    info: dict[str, Any] = {"exit_status": status}
    if error is not None:
        info["exception_str"] = str(error)
        info["traceback"] = "".join(traceback.format_exception(error))
    saved: dict[str, Any] = state.agent.save(
        None, {"info": info, "instance_id": instance.instance_id}
    )
    return saved
