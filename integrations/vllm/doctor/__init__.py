"""`agentkv doctor`: checks the installation, the plugin, and a running server."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from agentkv.command_line import add_json, command_parser, url
from agentkv.visible import visible

from .check import Check, Status
from .hits import NO_PLUGIN, check_hits
from .installation import check_installation
from .server import check_served_template, check_server
from .stickiness import check_stickiness
from .templates import check_folder


def main(argv: list[str]) -> int:
    """Run all checks and print them; return 0 if none failed, 1 if one did, 2 for bad usage."""
    options = _parse(argv)
    checks: list[Check] = []
    for check in _all_checks(options):
        checks.append(check)
        if not options.json:
            print(_as_text(check), flush=True)
    num_failed = sum(check.status == "FAIL" for check in checks)
    if options.json:
        document = {"ok": num_failed == 0, "checks": [asdict(check) for check in checks]}
        print(json.dumps(document))
    else:
        numbers = Counter(check.status for check in checks)
        counts = ", ".join(f"{numbers[status]} {status}" for status in get_args(Status))
        print(f"{len(checks)} checks: {counts}")
    return 1 if num_failed else 0


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = command_parser("doctor", "Check what is installed here, and a running server.")
    parser.add_argument("--url", type=url, help="address of a server, or of a router, to check")
    parser.add_argument("--model", metavar="DIR", help="a model's folder: check only its template")
    parser.add_argument("--api-key", help="the server's API key, if it asks for one")
    hits = "also compare replies with and without cache hits: six requests that generate"
    parser.add_argument("--check-hits", action="store_true", help=hits)
    add_json(parser)
    options = parser.parse_args(argv)
    if options.check_hits and options.url is None:
        parser.error("--check-hits: asks a server: give --url, too")
    if options.model is not None and not Path(options.model).exists():
        parser.error(f"--model: got {options.model!r}, no such folder")
    return options


def _all_checks(options: argparse.Namespace) -> Iterator[Check]:
    if options.model is not None:
        yield from check_folder(Path(options.model))
    else:
        yield from check_installation(os.environ)
    if options.url is not None:
        has_plugin = False
        for check in check_server(options.url, options.api_key):
            has_plugin |= (check.name, check.status) == ("server plugin", "OK")
            yield check
        yield from check_served_template(options.url, options.api_key)
        if has_plugin:
            yield from check_stickiness(options.url, options.api_key)
        if options.check_hits:
            yield from check_hits(options.url, options.api_key) if has_plugin else [NO_PLUGIN]


def _as_text(check: Check) -> str:
    line = f"{check.status:4}  {check.name}: {visible(check.seen)}"
    return line if check.advice is None else f"{line}\n      -> {visible(check.advice)}"
