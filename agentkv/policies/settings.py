"""The settings that a server takes under every policy, as flat JSON below one key.

A policy with settings of its own subclasses `Settings`, as `continuum` and `agentkv` do.
"""

from __future__ import annotations

import math
import re
from typing import Any, Self

from pydantic import Field, field_validator

from agentkv.durations import PredictorSettings
from agentkv.durations.ttl import PrefillReload

MAX_PRIORITY = 1000
"""Client priorities count from -MAX_PRIORITY (first) to MAX_PRIORITY."""


class Settings(PredictorSettings):
    """Settings of all policies, frozen; every field has a default."""

    policy: str = "agentkv"
    """The name that was asked for; `agentkv.policies.load_policy` finds the class behind it."""
    max_ttl_s: float = Field(300.0, gt=0, le=86_400, allow_inf_nan=False)
    """No pin lasts longer than this many seconds."""
    prefill_reload_s: tuple[float, float, float] | None = Field(None, strict=False)
    """Coefficients [c0, c1, c2] of seconds = c0 + c1 n + c2 n^2; absent: learned online."""
    patience_s: float = Field(20.0, gt=0, le=86_400, allow_inf_nan=False)
    """Seconds after which a waiting turn has aged out: under `agentkv` it goes first, or no later
    job is admitted ahead of it; a client within its share takes idle KV of others."""
    client_share: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)
    """Share of the pool that one client may hold while others want memory; None: an equal part."""
    client_header: str | None = Field(None, pattern=r"^[A-Za-z0-9-]{1,100}$")
    """Header by which a trusted proxy in front of a server without keys names clients."""
    session_headers: tuple[str, ...] = Field((), strict=False)
    """More headers with the id of a conversation, in addition to those of docs/reference/wire.md:
    the first one that a request has is read as its X-Session-ID."""
    client_caches: bool = False
    """Each client has prefixes of its own: nobody learns what another one has sent, and equal
    prefixes of several clients are computed and kept once for each."""
    infer_jobs: bool = True
    """Requests without a `job_id` that continue an earlier one, as agents do, belong to a job."""
    job_lease_s: float = Field(1800.0, gt=0, le=604_800, allow_inf_nan=False)
    """A job with no turn and no tool signal for this many seconds is forgotten."""
    max_jobs: int = Field(10_000, ge=1, le=1_000_000)
    """Jobs remembered; the one idle for longest is forgotten first."""
    record_events: int = Field(50_000, ge=0, le=10_000_000)
    """Events kept in the timestamps record, over all jobs; 0 turns it off."""
    show_prompts: bool = False
    """`agentkv explain` may show the few words in which a prompt differs from the turn before; the
    tokens of each job's last turn are kept for it."""
    show_commands: bool = False
    """Events, routes and the file show the commands of tool calls as they were sent; else only
    their key, such as `pytest` or `git clone`."""
    front_end_mib: float = Field(64.0, ge=0, le=65_536, allow_inf_nan=False, strict=False)
    """MiB for the ids of known conversations in each API server; 0: stock encodes them."""
    run_output_dir: str | None = None
    """Folder that gets the timestamps record as `scheduler_timestamps.jsonl`."""

    kv_socket: str | None = None
    """Unix socket on which all who connect hear whose KV is gone for good (agentkv.listeners)."""
    watchers: dict[str, dict[str, Any]] = Field({})
    """Watchers of your own, told of each event (see agentkv.watchers): names, each with its
    options."""

    @field_validator("prefill_reload_s")
    @classmethod
    def _takes_time(cls, given: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if given is not None and not all(math.isfinite(each) and each >= 0 for each in given):
            raise ValueError("three numbers of 0 or more")
        return given

    @field_validator("session_headers")
    @classmethod
    def _are_names(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        if len(given) > 16 or not all(re.fullmatch("[A-Za-z0-9-]{1,100}", name) for name in given):
            raise ValueError("at most 16 names of headers, of letters, digits and hyphens")
        return tuple(name.lower() for name in given)

    def of_engine(self, number: int) -> Self:
        """Return the settings of one of several engines, with files and sockets of its own."""
        own = super().of_engine(number)
        if number and self.kv_socket is not None:
            return own.model_copy(update={"kv_socket": f"{self.kv_socket}.{number}"})
        return own

    @property
    def prefill_reload(self) -> PrefillReload | None:
        if self.prefill_reload_s is None:
            return None
        return PrefillReload(*self.prefill_reload_s)
