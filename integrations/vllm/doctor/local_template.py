"""Checks the chat template of a model's folder: a program that prints a list of checks.

A template is somebody else's program. It runs in jinja's sandbox, as transformers runs it, and in
a process whose time and memory are limited, as `check_folder` does. Imports no model library.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .templates import (
    LEFT_OUT,
    LIMIT_S,
    SWITCHES,
    TOOLS,
    Message,
    NotRenderedError,
    Rendered,
    Settings,
    Template,
    check_template,
    is_rendered,
)

LIMIT_BYTES = 4 << 30
_GIVEN = {"messages", "tools", "documents", "add_generation_prompt", "enable_thinking", "thinking"}


def load(path: Path) -> Template:
    """Compile the template; raises NotRenderedError if there is none, or not a valid one."""
    source, special = _read(path)
    environment = _sandbox()
    # a tag that marks text for training, and writes nothing
    source = re.sub(r"(?<=\{%)(-?\s*)generation(?=\s*-?%\})", r"\1if true", source)
    source = re.sub(r"(?<=\{%)(-?\s*)endgeneration(?=\s*-?%\})", r"\1endif", source)
    try:
        compiled = environment.from_string(source)
        names = meta.find_undeclared_variables(environment.parse(source))
    except TemplateError as error:
        raise NotRenderedError(f"not a jinja template: {error}") from None
    special = {name: f"<{name}>" for name in names if name.endswith("_token")} | special
    count, unit = _counter(path)

    def render(messages: Sequence[Message], settings: Settings, is_prompt: bool) -> Rendered:
        values = {**special, "documents": None, **settings}
        values |= {"tools": TOOLS, "add_generation_prompt": is_prompt}
        reason = ""
        for in_parts in (False, True):  # some templates take a content only as a list of parts
            given = [_as_vllm_gives(message, in_parts) for message in messages]
            try:
                text = compiled.render(**values, messages=given)
            except Exception as error:  # it is a program, and may raise anything
                reason = reason or f"{type(error).__name__}: {str(error)[:300]}"
            else:
                if is_rendered(text):
                    return Rendered(text, count(text))
        raise NotRenderedError(f"the template stops with {reason!r}" if reason else LEFT_OUT)

    others = sorted(names - {*SWITCHES, *_GIVEN, *special, *environment.globals})
    return Template(render, [*(name for name in SWITCHES if name in names), *others], unit)


def _sandbox() -> ImmutableSandboxedEnvironment:
    def refuse(message: str) -> None:
        raise TemplateError(message)

    def as_json(value: object, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)  # jinja's escapes HTML

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = as_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _read(path: Path) -> tuple[str, dict[str, str]]:
    """Return a template, and the special tokens that it may name, from a folder or a file."""
    if path.is_file():
        return path.read_text(encoding="utf-8"), {}
    config: dict[str, Any] = {}
    for name in ("tokenizer_config.json", "chat_template.json"):
        if (path / name).is_file():
            config |= json.loads((path / name).read_text(encoding="utf-8"))
    source = config.get("chat_template")
    if (path / "chat_template.jinja").is_file():
        source = (path / "chat_template.jinja").read_text(encoding="utf-8")
    elif isinstance(source, list):  # several, of which transformers takes the one for tools
        by_name = {each["name"]: each["template"] for each in source}
        source = by_name.get("tool_use", by_name.get("default"))
    if not isinstance(source, str):
        raise NotRenderedError(f"no chat template in {path}")
    special = {name: value for name, value in config.items() if name.endswith("_token")}
    return source, {
        name: value["content"] if isinstance(value, dict) else value
        for name, value in special.items()
    }


def _as_vllm_gives(message: Message, in_parts: bool) -> Message:
    """A message as a template gets it: a call's arguments are an object, not its text."""
    given: Message = json.loads(json.dumps(message))
    for call in given.get("tool_calls", ()):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    if in_parts:
        given["content"] = [{"type": "text", "text": given["content"]}]
    return given


def _counter(path: Path) -> tuple[Callable[[str], Sequence[Any]], str]:
    """What counts a text, and in which unit: tokens if the folder has a tokenizer."""
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    except Exception:  # not installed, no such file, or another format
        return list, "characters"
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids, "tokens"


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    checks = check_template(partial(load, Path(sys.argv[1])))
    print(json.dumps([asdict(check) for check in checks]))
