"""The one reader of policies' names and of their settings.

A policy is a shipped one, that of an entry point, FILE.py:CLASS or MODULE:CLASS. Commands take more
behind it: rules after a colon, settings as JSON, `+offload` and, simulated, `@infinite`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from agentkv.errors import InputError, SettingsError, not_among
from agentkv.named_classes import NamedClasses, absolute_name, label_of

from .agentkv import AgentKVPolicy
from .base import Policy
from .context_serve import ContextServePolicy
from .continuum import ContinuumPolicy
from .settings import Settings

STOCK_POLICIES = ("fcfs", "priority")
"""vLLM's own policies, under which a server has no agentkv routes."""
SHIPPED: dict[str, type[Policy]] = {
    "continuum": ContinuumPolicy,
    "context_serve": ContextServePolicy,
    "agentkv": AgentKVPolicy,
}
"""Name -> class of the policies that agentkv brings."""
DEFAULT_POLICY = "agentkv"
"""What a command of ours starts, or compares with stock's, if none is named."""
CONFIG_KEY = "agentkv"
"""Key of the settings inside vLLM's `--additional-config`."""
PARSER_KEY = "agentkv_parser"
"""Key next to it, set by the plugin: the API server's parser of tool calls by name, and the file of
a plugin that brings it."""

RULES: Mapping[str, Mapping[str, Any]] = {
    "paper": {"rules": "paper", "ttl": "paper"},
    "released": {"rules": "released", "ttl": "fixed", "fixed_ttl_s": 2.0},
}
"""Allowed after a colon: Continuum's rules as published, or as released."""
_WITH_RULES = ("continuum", "context_serve")
OFFLOAD = "+offload"
"""Ends the name of a policy that is played with a tier of DRAM."""
INFINITE = "@infinite"
"""Ends the name of a policy that is simulated on an unlimited pool."""
NOT_SIMULATED = ("priority",)
"""Policies of the server that order by a field which no workload has."""
ADDITIONS = 'each also with {"setting": value} (JSON) and +offload (a DRAM tier), in that order'
_PARTS = re.compile(
    rf"(?P<rules>[^{{}}]+?)(?P<settings>\{{.*\}})?(?P<offload>{re.escape(OFFLOAD)})?", re.DOTALL
)

_CLASSES = NamedClasses("policy", Policy, "agentkv.policies", tuple(SHIPPED))


def policy_names() -> list[str]:
    """Return the names of the shipped policies, then of those that installed packages offer."""
    return _CLASSES.names()


def is_policy_name(name: str) -> bool:
    """Return whether the name may be ours: known, or spelled as a class in a module or file."""
    return _CLASSES.may_be(name)


def load_policy(name: str) -> type[Policy]:
    """Return the class behind a name.

    Raises InputError for a name that leads to no policy; errors of the policy's own module are
    raised as InputError too, with the original as its cause.
    """
    return SHIPPED.get(name) or _CLASSES.load(name)


def make_policy(settings: Settings, pool_tokens: int) -> Policy:
    """Make the policy that the settings name, for a KV pool of `pool_tokens`."""
    return load_policy(settings.policy)(settings, pool_tokens)


# Settings, as a server takes them


def default_settings() -> dict[str, Any]:
    """Return every setting that a shipped policy takes, with its default."""
    return {
        name: field.default
        for policy in reversed(SHIPPED.values())
        for name, field in policy.settings_class.model_fields.items()
    }


def read_settings(given: object, *, policy: str) -> Settings:
    """Validate the object under "agentkv" in vLLM's additional config.

    The settings are those of the policy's class. Raises SettingsError, which names each wrong key,
    the value seen and what is allowed; InputError if there is no such policy.
    """
    kind = load_policy(policy).settings_class
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise SettingsError(
            f"--additional-config: {CONFIG_KEY!r} must hold a JSON object, "
            f"got {type(given).__name__} {given!r:.80}"
        )
    try:
        return kind.model_validate({**given, "policy": policy})
    except ValidationError as error:
        problems = "; ".join(_problems(error, kind, label_of(policy)))
        text = f"--additional-config, under {CONFIG_KEY!r}: {problems}"
        raise SettingsError(text) from None


def _problems(error: ValidationError, kind: type[Settings], policy: str) -> list[str]:
    lines = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            takers = [name for name, taker in SHIPPED.items() if key in _keys(taker.settings_class)]
            if takers:
                lines.append(f"{key!r} is a setting of {' and '.join(takers)}, not of {policy}")
            else:
                lines.append(f"unknown key: {not_among(key, _keys(kind))}")
        elif isinstance(cause := problem.get("ctx", {}).get("error"), InputError):
            lines.append(str(cause))  # which names the key and what was seen
        else:
            lines.append(f"{key!r}: {problem['msg']}, got {problem['input']!r:.80}")
    return lines


def _keys(kind: type[Settings]) -> list[str]:
    """Keys of the settings, a policy's own first."""
    own = [name for name in kind.model_fields if name not in Settings.model_fields]
    return [*own, *(name for name in Settings.model_fields if name != "policy")]


# Policies, as commands take them


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """Holds a command's policy; the name spells its settings in one way, however they came."""

    name: str
    scheduling_policy: str
    """The value of vLLM's flag."""
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Laid over the policy's own, in the additional config."""
    has_offload: bool = False
    """With a tier of DRAM, whose flags are the caller's to add."""
    is_infinite: bool = False

    @property
    def is_stock(self) -> bool:
        return self.scheduling_policy in STOCK_POLICIES

    @property
    def engine_settings(self) -> dict[str, Any] | None:
        """Settings of an engine with the plugin; None for stock's."""
        return None if self.is_stock else {"policy": self.scheduling_policy, **self.settings}

    def check_server(self, info: Mapping[str, Any] | None) -> None:
        """Raise InputError unless a server runs the policy; `info` is the answer of its plugin.

        None stands for a server without the agentkv routes, as under a stock policy.
        """
        running = None if info is None else str(info.get("policy"))
        if running is None and self.is_stock:
            return
        if running != label_of(self.scheduling_policy):
            seen = "none of agentkv's policies" if running is None else repr(running)
            raise InputError(
                f"policy: {self.name!r} asked for, the server runs {seen}: start it with "
                f"--scheduling-policy {self.scheduling_policy}, or name what it runs"
            )
        settings = (info or {}).get("settings", {})
        for name, wanted in self.settings.items():
            if name in settings and settings[name] != wanted:
                raise InputError(
                    f"policy: {self.name!r} needs {name} = {wanted!r}, the server has "
                    f"{settings[name]!r}: start it with {' '.join(self.flags())}"
                )

    def flags(self) -> list[str]:
        """Flags of `vllm serve` in addition to `--scheduling-policy`."""
        if not self.settings:
            return []
        return ["--additional-config", json.dumps({CONFIG_KEY: dict(self.settings)})]


def folder_name(policy: str) -> str:
    """Return the name of a folder for a policy's files."""
    return re.sub(r"[^\w.+@-]", "-", policy)


def known_policies() -> list[str]:
    """Return the names that commands take, as they stand: vLLM's, ours, and ours with rules."""
    with_rules = [f"{policy}:{rules}" for policy in _WITH_RULES for rules in RULES]
    return [*STOCK_POLICIES, *policy_names(), *with_rules]


def server_policy(text: str) -> PolicyChoice:
    """Read the policy of a server; raises InputError for an unknown one, or wrong settings.

    A policy of your own is called by its class from then on.
    """
    known = known_policies()
    allowed = f"{', '.join([*known, 'FILE.py:CLASS', 'MODULE:CLASS'])}, {ADDITIONS}"
    return _choice(text, text, known, allowed)


def simulated_policy(text: str) -> PolicyChoice:
    """Read the policy of a simulation; raises InputError for an unknown one, or wrong settings."""
    known = [name for name in known_policies() if name not in NOT_SIMULATED]
    allowed = (
        f"{', '.join(known)}, FILE.py:CLASS and MODULE:CLASS, {ADDITIONS}; "
        f"then {INFINITE} (an unlimited pool)"
    )
    return _choice(text, text.removesuffix(INFINITE), known, allowed)


def _choice(text: str, name: str, known: list[str], allowed: str) -> PolicyChoice:
    """Read the policy of a name, which is `text` without its end."""
    match = _PARTS.fullmatch(name)
    rules = "" if match is None else match["rules"]
    policy, _, after = rules.partition(":")
    if match is None or (rules not in known and (not after or policy in known_policies())):
        raise InputError(f"--policy: {not_among(rules or text, known, allowed)}")
    settings: Mapping[str, Any] = {}
    if rules not in known:
        load_policy(rules)
        label, policy = label_of(rules), absolute_name(rules)
    else:
        label, settings = rules, RULES[after] if after else {}
    given = _given_settings(name, label, policy, settings, match["settings"] or "{}")
    spelled = json.dumps(given, sort_keys=True, separators=(",", ":")) if given else ""
    return PolicyChoice(
        label + spelled + (match["offload"] or "") + text[len(name) :],
        policy,
        {**settings, **given},
        has_offload=match["offload"] is not None,
        is_infinite=text != name,
    )


def _given_settings(
    name: str, label: str, policy: str, settings: Mapping[str, Any], text: str
) -> dict[str, Any]:
    try:
        given: dict[str, Any] = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"--policy: got {name!r}, {text} is no JSON: {error}") from None
    if not given:
        return {}
    if policy in STOCK_POLICIES:
        raise InputError(f"--policy: got {name!r}, {label} is vLLM's and has no settings")
    if "policy" in given:
        raise InputError(f"--policy: got {name!r}, the policy stands before the settings")
    try:
        read_settings({**settings, **given}, policy=policy)
    except SettingsError as error:
        raise InputError(f"--policy: got {name!r}: {error}") from None
    return given
