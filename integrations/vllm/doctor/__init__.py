"""`agentkv doctor`: checks a running server, then the installation and the plugin here."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import get_args

from agentkv.command_line import add_json, command_parser, url
from agentkv.visible import visible

from .check import Check, Status
from .installation import check_installation
from .server import check_server


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
    parser = command_parser(
        "doctor",
        "Check what is installed here, or a running server.\n\n"
        "    agentkv doctor --url http://127.0.0.1:8000",
    )
    parser.add_argument("--url", type=url, help="address of a server, or of a router, to check")
    parser.add_argument("--api-key", help="the server's API key, if it asks for one")
    add_json(parser)
    return parser.parse_args(argv)


def _all_checks(options: argparse.Namespace) -> Iterator[Check]:
    if options.url is not None:
        found: dict[str, Status] = {}
        for check in check_server(options.url, options.api_key):
            found[check.name] = check.status
            yield check
        if found.get("server") != "OK":
            return  # what is installed here says nothing of it, and takes half a minute to see
    yield from check_installation(os.environ)


def _as_text(check: Check) -> str:
    line = f"{check.status:4}  {check.name}: {visible(check.seen)}"
    return line if check.advice is None else f"{line}\n      -> {visible(check.advice)}"
