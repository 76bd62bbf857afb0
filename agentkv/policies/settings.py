"""The settings that every policy has; a policy with more of them subclasses `Settings`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from agentkv.durations import load_predictor
from agentkv.durations.ttl import PrefillReload
from agentkv.errors import InputError
from agentkv.listeners import listener_class

from .forecast import MAX_TURNS

BATCH: Mapping[str, Any] = {"horizon_turns": 3, "patience_s": 86_400.0}
"""Defaults under the goal "batch": memory fills from the start, and no turn goes first because it
has waited. Measured in studies/rollouts."""
FIRST_RESPONSE: Mapping[str, Any] = {"admission": False, "patience_s": 60.0}
"""Defaults that favour the first response: no new job is held back, and a turn that has much to
compute lets others pass for longer. docs/explanation/agentkv-policy.md has the trade."""
MAX_PRIORITY = 1000
"""Client priorities count from -MAX_PRIORITY (first) to MAX_PRIORITY."""

MAX_WEIGHT = 1000.0
"""Weights of clients are above 0 and at most this."""
Weight = Annotated[float, Field(gt=0, le=MAX_WEIGHT, allow_inf_nan=False, strict=False)]


class Settings(BaseModel):
    """Settings of all policies, frozen; every field has a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    policy: str = "continuum"
    """The name that was asked for; `agentkv.policies.load_policy` finds the class behind it."""
    rules: Literal["paper", "released"] = "paper"
    ttl: Literal["paper", "fixed"] = "paper"
    fixed_ttl_s: float = Field(2.0, ge=0, le=3600, allow_inf_nan=False)
    """TTL in seconds under `ttl: fixed`, and of the cold start under `ttl: paper`."""
    cold_start_samples: int = Field(100, ge=1, le=100_000)
    """K: tool durations seen before their distribution is used."""
    max_ttl_s: float = Field(300.0, gt=0, le=86_400, allow_inf_nan=False)
    """No pin lasts longer than this many seconds."""
    prefill_reload_s: tuple[float, float, float] | None = Field(None, strict=False)
    """Coefficients [c0, c1, c2] of seconds = c0 + c1 n + c2 n^2; absent: learned online."""
    predictor: str = "default"
    """Under `context_serve` and `agentkv`: what predicts, one of agentkv.predictors.KINDS or the
    name of your own. Unless given, `context_serve` uses ContextServe's own layers."""
    predictor_state: str | None = None
    """With a predictor: file that keeps what the predictor learned; None: not kept."""
    predictor_save_s: float = Field(60.0, gt=0, le=86_400, allow_inf_nan=False)
    """Seconds between two writes of that file, while there is something new."""
    predictor_per_client: bool = False
    """With a predictor: each client has its own, which the others' commands teach nothing. All
    start with what `predictor_state` holds, and nothing is written."""
    patience_s: float = Field(20.0, gt=0, le=86_400, allow_inf_nan=False)
    """Under `agentkv`: seconds that a turn waits before it goes first; for a first turn, before no
    later job is admitted ahead of it."""
    goal: Literal["jobs", "batch"] = "jobs"
    """Under `agentkv`: shorten the mean job ("jobs"), or the time until the last trajectory of a
    training step ends ("batch", which changes the defaults of the settings in BATCH)."""
    favour: Literal["throughput", "first-response"] = "throughput"
    """Under `agentkv`: while memory is short, keep whole jobs short, or the wait for their first
    turns ("first-response", which changes the defaults of the settings in FIRST_RESPONSE)."""
    horizon_turns: int = Field(MAX_TURNS, ge=0, le=MAX_TURNS)
    """Under `agentkv`: the turns of each job for which a new job must be expected to fit."""
    headroom: float = Field(0.0, ge=0, le=0.9, allow_inf_nan=False)
    """Under `agentkv`: the share of the pool that new jobs are expected to leave free."""
    admission: bool = True
    """Under `agentkv`: new jobs wait until they are expected to fit; False: others see to that."""
    client_share: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)
    """Share of the pool that one client of weight 1 may hold while others want memory; None: the
    pool over the sum of the clients' weights."""
    client_weights: dict[str, Weight] = {}
    """Weights of clients by name, 1 for all others: by them memory and service are shared."""
    client_header: str | None = Field(None, pattern=r"^[A-Za-z0-9-]{1,100}$")
    """Header by which a trusted proxy in front of a server without keys names clients."""
    infer_jobs: bool = True
    """Requests without a `job_id` that continue a turn which called a tool belong to a job."""
    job_lease_s: float = Field(1800.0, gt=0, le=604_800, allow_inf_nan=False)
    """A job with no turn and no tool signal for this many seconds is forgotten."""
    max_jobs: int = Field(10_000, ge=1, le=1_000_000)
    """Jobs remembered; the one idle for longest is forgotten first."""
    record_events: int = Field(50_000, ge=0, le=10_000_000)
    """Events kept in the timestamps record, over all jobs; 0 turns it off."""
    show_prompts: bool = False
    """`agentkv explain` may show the few words in which a prompt differs from the turn before; the
    tokens of each job's last turn are kept for it."""
    run_output_dir: str | None = None
    """Folder that gets the timestamps record as `scheduler_timestamps.jsonl`."""

    listeners: dict[str, dict[str, Any]] = {}
    """What is called when the KV of a job is gone for good: names, each with its options."""

    @model_validator(mode="before")
    @classmethod
    def _with_own_predictor(cls, given: Any) -> Any:
        """ContextServe predicts by its own layers, since people compare against it by name."""
        if isinstance(given, Mapping) and given.get("policy") == "context_serve":
            return {"predictor": "context_serve", **given}
        return given

    @model_validator(mode="before")
    @classmethod
    def _with_aim(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        is_batch, is_first = given.get("goal") == "batch", given.get("favour") == "first-response"
        if is_batch and is_first:
            raise InputError(
                "'goal' \"batch\" counts whole jobs, 'favour' \"first-response\" first turns: "
                "leave out one of the two"
            )
        return {**(BATCH if is_batch else {}), **(FIRST_RESPONSE if is_first else {}), **given}

    @field_validator("prefill_reload_s")
    @classmethod
    def _takes_time(cls, given: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if given is not None and not all(math.isfinite(each) and each >= 0 for each in given):
            raise ValueError("three numbers of 0 or more")
        return given

    @field_validator("predictor")
    @classmethod
    def _is_known(cls, name: str) -> str:
        load_predictor(name)
        return name

    @field_validator("listeners")
    @classmethod
    def _exist(cls, named: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, options in named.items():
            listener_class(name, options)
        return named

    def of_engine(self, number: int) -> Settings:
        """Return the settings of engine `number`, from 0: each has a state file of its own."""
        if self.predictor_state is None or number == 0:
            return self
        path = Path(self.predictor_state)
        own_path = path.with_name(f"{path.stem}-{number}{path.suffix}")
        return self.model_copy(update={"predictor_state": str(own_path)})

    @property
    def prefill_reload(self) -> PrefillReload | None:
        if self.prefill_reload_s is None:
            return None
        return PrefillReload(*self.prefill_reload_s)
