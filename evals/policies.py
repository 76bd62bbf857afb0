"""Policies by the names that commands take, and the server flags behind each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentkv.errors import InputError
from agentkv.integrations.vllm.settings import CONFIG_KEY
from agentkv.named_classes import absolute_name, label_of
from agentkv.policies import names

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "paper": {"rules": "paper", "ttl": "paper"},
    "released": {"rules": "released", "ttl": "fixed", "fixed_ttl_s": 2.0},
}
"""Allowed after a colon: Continuum's rules as published, or as released."""
_WITH_RULE_SETS = ("continuum", "context_serve")
OFFLOAD = "+offload"
"""Ends the name of a policy that is played with a tier of DRAM."""


@dataclass(frozen=True, slots=True)
class ServerPolicy:
    """`scheduling_policy` is the value of vLLM's flag; `settings` go into the additional config."""

    name: str
    scheduling_policy: str
    settings: Mapping[str, Any]
    has_offload: bool = False

    @property
    def is_stock(self) -> bool:
        return self.scheduling_policy in names.STOCK_POLICIES

    def flags(self) -> list[str]:
        """Flags of `vllm serve` in addition to `--scheduling-policy`."""
        if not self.settings:
            return []
        return ["--additional-config", json.dumps({CONFIG_KEY: dict(self.settings)})]


def policy_names() -> list[str]:
    variants = [f"{policy}:{variant}" for policy in _WITH_RULE_SETS for variant in VARIANTS]
    return [*names.STOCK_POLICIES, *names.policy_names(), *variants]


def server_policy(name: str) -> ServerPolicy:
    """The policy of that name; raises InputError, which lists the valid ones.

    A policy of your own is FILE.py:CLASS or MODULE:CLASS, and is called by its class from then on.
    `+offload` behind a name asks for a tier of DRAM, whose flags are the caller's to add.
    """
    if name.endswith(OFFLOAD):
        policy = server_policy(name.removesuffix(OFFLOAD))
        return replace(policy, name=policy.name + OFFLOAD, has_offload=True)
    if "{" in name:
        raise InputError(
            f"policy: got {name!r}: settings behind a name are for the simulator; a server takes "
            "them by --additional-config, in `agentkv compare` by --rival NAME=FLAGS"
        )
    scheduling_policy, _, variant = name.partition(":")
    if name in policy_names():
        return ServerPolicy(name, scheduling_policy, VARIANTS[variant] if variant else {})
    if not variant or scheduling_policy in policy_names():
        allowed = ", ".join([*policy_names(), "FILE.py:CLASS", "MODULE:CLASS"])
        raise InputError(f"policy: got {name!r}, allowed are {allowed}")
    names.load_policy(name)
    return ServerPolicy(label_of(name), absolute_name(name), {})


def check_policy(policy: ServerPolicy, info: Mapping[str, Any] | None) -> None:
    """Raise InputError unless the server runs the policy; `info` is the answer of its plugin.

    None stands for a server without the agentkv routes, as under a stock policy.
    """
    running = None if info is None else str(info.get("policy"))
    if running is None and policy.is_stock:
        return
    if running != label_of(policy.scheduling_policy):
        seen = "none of agentkv's policies" if running is None else repr(running)
        raise InputError(
            f"policy: {policy.name!r} asked for, the server runs {seen}: start it with "
            f"--scheduling-policy {policy.scheduling_policy}, or name what it runs"
        )
    settings = (info or {}).get("settings", {})
    for name, wanted in policy.settings.items():
        if name in settings and settings[name] != wanted:
            raise InputError(
                f"policy: {policy.name!r} needs {name} = {wanted!r}, the server has "
                f"{settings[name]!r}: start it with {' '.join(policy.flags())}"
            )
