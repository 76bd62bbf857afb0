"""Loads vLLM and the plugin the way a server does, and reports as one line of JSON on stdout.

Run by the doctor as a process of its own: importing vLLM is slow, noisy, and may fail.
"""

from __future__ import annotations

import importlib.util
import json
from argparse import ArgumentParser
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

Report = dict[str, Any]

GROUP = "vllm.general_plugins"
NAME = "agentkv"


def import_modules(report: Report) -> None:
    """Import torch, torchvision where it is installed, and vLLM; note their versions."""
    for name in ("torch", "torchvision", "vllm"):
        if name == "torchvision" and importlib.util.find_spec(name) is None:
            continue
        report["importing"] = name
        report[name] = str(importlib.import_module(name).__version__)


def load_entry_point(report: Report) -> None:
    """Import what the entry point names; vLLM's own loader would hide why that fails."""
    entry_points(group=GROUP, name=NAME)[NAME].load()


def register(report: Report) -> None:
    """Let vLLM load its plugins, and see whether its command line has our policies."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.plugins import load_general_plugins
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from ..plugin import check_vllm
    from ..settings import POLICIES

    check_vllm()
    load_general_plugins()
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    report["policies"] = [name for name in POLICIES if _is_offered(parser, name)]


def _is_offered(parser: ArgumentParser, policy: str) -> bool:
    try:
        parser.parse_args(["--scheduling-policy", policy])
    except SystemExit:
        return False
    return True


STAGES: tuple[Callable[[Report], None], ...] = (import_modules, load_entry_point, register)


def main() -> None:
    """Run the stages up to the first that fails; the report names it."""
    report: Report = {}
    for stage in STAGES:
        try:
            stage(report)
        except Exception as error:  # anything that stops a server stops this
            report["failed_at"] = stage.__name__
            report["error"] = f"{type(error).__name__}: {error}"
            break
    print(json.dumps(report))


if __name__ == "__main__":
    main()
