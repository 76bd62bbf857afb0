"""`agentkv env AGENT URL`: prints the settings that point a coding agent at a server.

Standard output holds only what can be used as it is: lines for a shell (`eval "$(agentkv env
claude URL)"`) or the text of a file; what to do with it is on standard error. Writes no file.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from urllib.parse import urlsplit

from agentkv.client.transport import root_of, send_request
from agentkv.errors import AgentKVServerError, InputError

NO_KEY = "none"
"""Stands for the server's API key: agents want one, and most servers have none."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The settings that an agent needs, and how it is started then."""

    run: str
    environment: Mapping[str, str] = field(default_factory=dict)
    setup: str | None = None
    """A command of the agent's own that stores the settings."""
    path: str | None = None
    """The file that must hold `text`."""
    text: str | None = None


def settings_by_agent(root_url: str, model: str) -> dict[str, AgentSettings]:
    """The settings of every agent, for a server's root URL and the name of a model it serves."""
    api_url = f"{root_url}/v1"
    openai = {"OPENAI_BASE_URL": api_url, "OPENAI_API_KEY": NO_KEY}
    # Claude Code names models by tier, too, for its sub-agents and titles
    tiers = [f"ANTHROPIC_DEFAULT_{tier}_MODEL" for tier in ("OPUS", "SONNET", "HAIKU")]
    files = _config_files(api_url, model)
    cline = ["cline", "auth", "-p", "openai-compatible", "-k", NO_KEY, "-m", model, "-b", api_url]
    return {
        "claude": AgentSettings(
            "claude",
            {
                "ANTHROPIC_BASE_URL": root_url,
                "ANTHROPIC_AUTH_TOKEN": NO_KEY,
                **dict.fromkeys(("ANTHROPIC_MODEL", *tiers), model),
            },
        ),
        "codex": AgentSettings("codex", path="~/.codex/config.toml", text=files["codex"]),
        "opencode": AgentSettings(
            "opencode", path="~/.config/opencode/opencode.json", text=files["opencode"]
        ),
        "qwen": AgentSettings("qwen --auth-type openai", {**openai, "OPENAI_MODEL": model}),
        "aider": AgentSettings(
            shlex.join(["aider", "--model", f"openai/{model}"]),
            {"OPENAI_API_BASE": api_url, "OPENAI_API_KEY": NO_KEY},
        ),
        "cline": AgentSettings("cline", setup=shlex.join(cline)),
        "continue": AgentSettings(
            "cn --config ~/.continue/config.yaml",
            path="~/.continue/config.yaml",
            text=files["continue"],
        ),
        "gptme": AgentSettings(shlex.join(["gptme", "-m", f"local/{model}"]), openai),
        "kilo": AgentSettings("kilo", path="~/.config/kilo/kilo.json", text=files["opencode"]),
        "openhands": AgentSettings(
            "openhands --override-with-envs",
            {"LLM_BASE_URL": api_url, "LLM_API_KEY": NO_KEY, "LLM_MODEL": f"openai/{model}"},
        ),
        "pi": AgentSettings(
            shlex.join(["pi", "--provider", "agentkv", "--model", model]),
            path="~/.pi/agent/models.json",
            text=files["pi"],
        ),
    }


def _config_files(api_url: str, model: str) -> dict[str, str]:
    """The texts of the files in which some agents keep their settings."""
    codex = f"""\
model = {_quoted(model)}
model_provider = "agentkv"

[model_providers.agentkv]
name = "agentkv"
base_url = {_quoted(api_url)}
wire_api = "responses"
"""
    continue_ = f"""\
name: agentkv
version: 0.0.1
schema: v1
models:
  - name: {_quoted(model)}
    provider: openai
    model: {_quoted(model)}
    apiBase: {_quoted(api_url)}
    apiKey: {NO_KEY}
    roles: [chat]
"""
    opencode = {
        **dict.fromkeys(("model", "small_model"), f"agentkv/{model}"),
        "provider": {
            "agentkv": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "agentkv",
                "options": {"baseURL": api_url, "apiKey": NO_KEY},
                "models": {model: {}},
            }
        },
    }
    pi = {
        "providers": {
            "agentkv": {
                "baseUrl": api_url,
                "apiKey": NO_KEY,
                "api": "openai-completions",
                "models": [{"id": model}],
            }
        }
    }
    return {
        "codex": codex,
        "continue": continue_,
        "opencode": _json(opencode),
        "pi": _json(pi),
    }


def _quoted(text: str) -> str:
    """A string as TOML and YAML write it."""
    return json.dumps(text, ensure_ascii=False)


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


AGENTS = tuple(settings_by_agent("", ""))


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0: printed; 2: the URL is not valid, or no model is known."""
    options = _parser().parse_args(argv)
    root_url = _root_url(options.url)
    model = options.model or _served_model(root_url)
    settings = settings_by_agent(root_url, model)[options.agent]
    if options.json:
        print(
            json.dumps({"agent": options.agent, "url": root_url, "model": model} | asdict(settings))
        )
        return 0
    exports = [f"export {name}={shlex.quote(text)}" for name, text in settings.environment.items()]
    print(settings.text or "\n".join([*exports, settings.setup or ""]).rstrip())
    place = f"put this into {settings.path}" if settings.path else "run this in your shell"
    print(f"agentkv env: {place}, then start `{settings.run}`", file=sys.stderr)
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
    parser = argparse.ArgumentParser(prog="agentkv env", description=__doc__)
    parser.add_argument("agent", choices=AGENTS, metavar="AGENT", help=", ".join(AGENTS))
    parser.add_argument("url", metavar="URL", help="the server, such as http://127.0.0.1:8000")
    parser.add_argument("--model", metavar="NAME", help="default: the first that the server lists")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    return parser


if __name__ == "__main__":
    sys.exit(main())
