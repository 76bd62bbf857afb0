"""`agentkv run AGENT URL`: starts a coding agent with the settings that point it at a server.

`--print` shows them instead: standard output holds only what can be used as it is, lines for a
shell or the text of a file, and what to do with it is on standard error. Writes no file.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from agentkv.client.server import root_of, send_request
from agentkv.command_line import command_parser, url
from agentkv.errors import AgentKVServerError, InputError
from agentkv.visible import visible

NO_KEY = "none"
"""Stands for the server's API key: agents want one, and most servers have none."""

_AGENTS = tomllib.loads(resources.files("agentkv").joinpath("agents.toml").read_text("utf-8"))
AGENTS = tuple(_AGENTS)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What points an agent at a server.

    run: the words that start it. environment: variables of it. setup: a command of its own that
    stores the settings. text: what belongs into its file, `path`. note: a hint for the user.
    """

    run: Sequence[str]
    environment: Mapping[str, str]
    setup: Sequence[str] = ()
    path: str | None = None
    text: str | None = None
    note: str | None = None

    def needs_file(self, root_url: str) -> bool:
        """Return whether neither the agent's command nor its environment names the server."""
        return not any(root_url in part for part in (*self.run, *self.environment.values()))

    def printed(self) -> str:
        """Return lines for a shell, or the text of the file."""
        if self.text is not None:
            return self.text
        variables = self.environment.items()
        exports = [f"export {name}={shlex.quote(visible(value))}" for name, value in variables]
        return "\n".join([*exports, *([visible(shlex.join(self.setup))] if self.setup else [])])


def settings_of(agent: str, root_url: str, model: str) -> AgentSettings:
    """Return an agent's settings for a server's root URL and a model that it serves."""
    values = {"url": root_url, "api_url": f"{root_url}/v1", "model": model, "key": NO_KEY}
    # strings of TOML, YAML and JSON are written alike
    quoted = {
        name: visible(json.dumps(each, ensure_ascii=False)[1:-1]) for name, each in values.items()
    }
    entry = _AGENTS[agent]
    text = entry.get("text") or _AGENTS.get(entry.get("like"), {}).get("text")

    def words(name: str) -> list[str]:
        return [Template(word).substitute(values) for word in entry.get(name, "").split()]

    text = Template(text).substitute(quoted).strip() if text else None
    environment = {
        name: Template(value).substitute(values)
        for name, value in entry.get("environment", {}).items()
    }
    if text is not None and "text_variable" in entry:
        environment[entry["text_variable"]] = text
    return AgentSettings(
        run=words("run"),
        environment=environment,
        setup=words("setup"),
        path=entry.get("path"),
        text=text,
        note=entry.get("note"),
    )


def main(argv: Sequence[str]) -> int:
    """Replace this process by the agent; 0 for what was printed, 127 if it is not installed.

    Raises InputError for a server that lists no model, and for an agent whose file does not name
    the server.
    """
    options, arguments = _parse(argv)
    root_url = root_of(options.url)
    settings = settings_of(options.agent, root_url, options.model or _served_model(root_url))
    path, needs_file = settings.path, settings.needs_file(root_url)
    if options.print:
        print(settings.printed())
        start = settings.run[:1] if path and not needs_file else settings.run
        place = f"put this into {path}" if path else "run this in your shell"
        print(f"agentkv run: {place}, then start `{visible(shlex.join(start))}`", file=sys.stderr)
        if settings.note:
            print(f"agentkv run: {settings.note}", file=sys.stderr)
        return 0
    if path and needs_file and not _names(Path(path).expanduser(), root_url):
        again = f"agentkv run {options.agent} {options.url} --print"
        raise InputError(f"{path} does not name {root_url}: `{again}` shows what it needs")
    sys.stdout.flush()
    try:
        if settings.setup:
            subprocess.run(settings.setup, check=True)
        command = [*settings.run, *arguments]
        os.execvpe(command[0], command, {**os.environ, **settings.environment})
    except FileNotFoundError:
        print(f"agentkv run: {settings.run[0]} is not installed here", file=sys.stderr)
        return 127
    except subprocess.CalledProcessError as error:
        return int(error.returncode)


def _parse(argv: Sequence[str]) -> tuple[Any, list[str]]:
    parser = command_parser("run", __doc__)
    parser.add_argument("agent", choices=AGENTS, metavar="AGENT", help=", ".join(AGENTS))
    parser.add_argument(
        "url", metavar="URL", type=url, help="the server, such as http://127.0.0.1:8000"
    )
    parser.add_argument("--model", metavar="NAME", help="default: the first that the server lists")
    parser.add_argument("--print", action="store_true", help="print the settings, start nothing")
    arguments: list[str] = []
    if "--" in argv:
        split = list(argv).index("--")
        argv, arguments = argv[:split], list(argv[split + 1 :])
    return parser.parse_args(argv), arguments


def _names(path: Path, root_url: str) -> bool:
    with suppress(OSError):
        return root_url in path.read_text("utf-8", "replace")
    return False


def _served_model(root_url: str) -> str:
    """Return the first model that the server lists; raises InputError if it lists none."""
    try:
        model = send_request("GET", f"{root_url}/v1/models", None, headers={})["data"][0]["id"]
    except (AgentKVServerError, LookupError, TypeError) as error:
        reason = error if isinstance(error, AgentKVServerError) else "no models listed"
        raise InputError(f"no model's name from the server ({reason}); give --model NAME") from None
    return str(model)
