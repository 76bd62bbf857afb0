"""`agentkv env AGENT URL`: prints the settings that point a coding agent at a server.

Standard output holds only what can be used as it is: lines for a shell (`eval "$(agentkv env
claude URL)"`) or the text of a file; what to do with it is on standard error. Writes no file.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from importlib import resources
from string import Template
from typing import Any
from urllib.parse import urlsplit

from agentkv.client.transport import root_of, send_request
from agentkv.command_line import add_json, command_parser
from agentkv.errors import AgentKVServerError, InputError
from agentkv.visible import visible

NO_KEY = "none"
"""Stands for the server's API key: agents want one, and most servers have none."""

_AGENTS = tomllib.loads(resources.files("agentkv").joinpath("agents.toml").read_text("utf-8"))
AGENTS = tuple(_AGENTS)


def settings_of(agent: str, root_url: str, model: str) -> dict[str, Any]:
    """An agent's entry in `agents.toml`, for a server's root URL and a model that it serves."""
    values = {"url": root_url, "api_url": f"{root_url}/v1", "model": model, "key": NO_KEY}
    for_shell = {name: shlex.quote(visible(text)) for name, text in values.items()}
    # strings of TOML, YAML and JSON are written alike
    for_file = {n: visible(json.dumps(v, ensure_ascii=False)[1:-1]) for n, v in values.items()}
    entry = _AGENTS[agent]
    text = entry.get("text") or _AGENTS.get(entry.get("like"), {}).get("text")
    return {
        "run": Template(entry["run"]).substitute(for_shell),
        "environment": {
            name: Template(value).substitute(values)
            for name, value in entry.get("environment", {}).items()
        },
        "setup": Template(entry["setup"]).substitute(for_shell) if "setup" in entry else None,
        "path": entry.get("path"),
        "text": Template(text).substitute(for_file).strip() if text else None,
        "note": entry.get("note"),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0: printed; 2: the URL is not valid, or no model is known."""
    options = _parser().parse_args(argv)
    root_url = _root_url(options.url)
    model = options.model or _served_model(root_url)
    settings = settings_of(options.agent, root_url, model)
    if options.json:
        print(json.dumps({"agent": options.agent, "url": root_url, "model": model} | settings))
        return 0
    variables = settings["environment"].items()
    exports = [f"export {name}={shlex.quote(visible(text))}" for name, text in variables]
    print(settings["text"] or "\n".join([*exports, settings["setup"] or ""]).rstrip())
    path, run = settings["path"], settings["run"]
    place = f"put this into {path}" if path else "run this in your shell"
    print(f"agentkv env: {place}, then start `{run}`", file=sys.stderr)
    if settings["note"]:
        print(f"agentkv env: {settings['note']}", file=sys.stderr)
    return 0


def _root_url(url: str) -> str:
    """Return the server's root; raises InputError unless `url` is one of its two URLs."""
    root_url = root_of(url)
    with suppress(ValueError):  # brackets that do not pair, or a port with letters
        parts = urlsplit(root_url)
        is_root = not (parts.query or parts.fragment)
        if parts.scheme in ("http", "https") and parts.hostname and is_root and parts.port != 0:
            return root_url
    raise InputError(f"{url!r} is no server's URL; give one like http://127.0.0.1:8000")


def _served_model(root_url: str) -> str:
    """Return the first model that the server lists; raises InputError if it lists none."""
    try:
        model = send_request("GET", f"{root_url}/v1/models", None, headers={})["data"][0]["id"]
    except (AgentKVServerError, LookupError, TypeError) as error:
        reason = error if isinstance(error, AgentKVServerError) else "no models listed"
        raise InputError(f"no model's name from the server ({reason}): give --model NAME") from None
    return str(model)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("env", __doc__)
    parser.add_argument("agent", choices=AGENTS, metavar="AGENT", help=", ".join(AGENTS))
    parser.add_argument("url", metavar="URL", help="the server, such as http://127.0.0.1:8000")
    parser.add_argument("--model", metavar="NAME", help="default: the first that the server lists")
    add_json(parser)
    return parser
