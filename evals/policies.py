"""Policies by the names that commands take, and the server flags behind each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentkv.errors import InputError, SettingsError
from agentkv.integrations.vllm.settings import CONFIG_KEY, read_settings
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
ADDITIONS = 'each also with {"setting": value} (JSON) and +offload (a DRAM tier), in that order'
NAME = re.compile(
    rf"(?P<rules>[^{{}}]+?)(?P<settings>\{{.*\}})?(?P<offload>{re.escape(OFFLOAD)})?", re.DOTALL
)
"""The parts of a policy's name."""


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


def folder_name(policy: str) -> str:
    """The name of a folder for a policy's files."""
    return re.sub(r"[^\w.+@-]", "-", policy)


def server_policy(name: str) -> ServerPolicy:
    """The policy of a name; raises InputError for an unknown one, or wrong settings.

    A policy of your own is FILE.py:CLASS or MODULE:CLASS, and is called by its class from then on.
    A JSON object behind it has settings, laid over its own; the name spells them in one way.
    `+offload` asks for a tier of DRAM, whose flags are the caller's to add.
    """
    match = NAME.fullmatch(name)
    rules = name if match is None else match["rules"]
    scheduling_policy, _, variant = rules.partition(":")
    if rules in policy_names():
        policy = ServerPolicy(rules, scheduling_policy, VARIANTS[variant] if variant else {})
    elif match is None or not variant or scheduling_policy in policy_names():
        allowed = ", ".join([*policy_names(), "FILE.py:CLASS", "MODULE:CLASS"])
        raise InputError(f"--policy: got {name!r}, allowed are {allowed}, {ADDITIONS}")
    else:
        names.load_policy(rules)
        policy = ServerPolicy(label_of(rules), absolute_name(rules), {})
    assert match is not None
    given = _read_given(name, policy, match["settings"] or "{}")
    spelled = json.dumps(given, sort_keys=True, separators=(",", ":")) if given else ""
    return replace(
        policy,
        name=policy.name + spelled + (match["offload"] or ""),
        settings={**policy.settings, **given},
        has_offload=match["offload"] is not None,
    )


def _read_given(name: str, policy: ServerPolicy, text: str) -> dict[str, Any]:
    try:
        given: dict[str, Any] = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"--policy: got {name!r}, {text} is no JSON: {error}") from None
    if not given:
        return {}
    if policy.is_stock:
        raise InputError(f"--policy: got {name!r}, {policy.name} is vLLM's and has no settings")
    if "policy" in given:
        raise InputError(f"--policy: got {name!r}, the policy stands before the settings")
    try:
        read_settings({**policy.settings, **given}, policy=policy.scheduling_policy)
    except SettingsError as error:
        raise InputError(f"--policy: got {name!r}: {error}") from None
    return given


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
