"""Scheduling policies: the base class to write one, the values it sees, and the shipped ones.

Importable without vLLM. `INTERFACE_VERSION` rises when a policy has to be changed.
"""

from agentkv.durations import Prediction
from agentkv.durations.ttl import TTL

from .agentkv import AgentKVPolicy, AgentKVSettings
from .base import (
    PINNED,
    PREEMPTED,
    UNPINNED,
    AdmissionRequest,
    AllocationRequest,
    EngineView,
    Policy,
    Pressure,
    Rank,
)
from .context_serve import ContextServePolicy, ContextServeSettings
from .continuum import ContinuumPolicy, ContinuumSettings
from .costs import RestoreCost
from .forecast import JobDemand, KVDemandForecast, SharedPrefix
from .jobs import Decision, Job, Turn
from .names import load_policy, policy_names
from .pins import Pin
from .settings import Settings

INTERFACE_VERSION = 1

__all__ = [
    "INTERFACE_VERSION",
    "PINNED",
    "PREEMPTED",
    "TTL",
    "UNPINNED",
    "AdmissionRequest",
    "AgentKVPolicy",
    "AgentKVSettings",
    "AllocationRequest",
    "ContextServePolicy",
    "ContextServeSettings",
    "ContinuumPolicy",
    "ContinuumSettings",
    "Decision",
    "EngineView",
    "Job",
    "JobDemand",
    "KVDemandForecast",
    "Pin",
    "Policy",
    "Prediction",
    "Pressure",
    "Rank",
    "RestoreCost",
    "Settings",
    "SharedPrefix",
    "Turn",
    "load_policy",
    "policy_names",
]
