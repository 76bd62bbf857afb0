"""The doctor names what a chat template does to earlier turns, what it costs, and what ends it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentkv.integrations.vllm.doctor import main, templates
from agentkv.integrations.vllm.doctor.check import Check
from agentkv.integrations.vllm.doctor.local_template import load
from agentkv.integrations.vllm.doctor.server import check_served_template
from agentkv.integrations.vllm.doctor.templates import check_folder, check_template

# each text stands where the template of some model family has the like
PARTS = {
    "before": "",
    "tools": "{% for tool in tools %}{{ tool | tojson }}{% endfor %}\n",
    "with_user": "",
    "thought": "<think>{{ m.reasoning_content }}</think>",
    "call": "<call>{{ c.function | tojson }}</call>",
    "opening": "<think>",
}
TEMPLATE = """\
{%- set last = namespace(user=0) %}
{%- for m in messages if m.role == 'user' %}{% set last.user = messages.index(m) %}{% endfor %}
BEFORE TOOLS
{%- for m in messages %}<{{ m.role }}>
{%- if m.role == 'assistant' %}THOUGHT{{ m.content }}
{%- for c in m.tool_calls or [] %}CALL{% endfor %}
{%- else %}{% if loop.index0 == last.user %}WITH_USER{% endif %}{{ m.content }}{% endif %}<end>
{%- endfor %}{% if add_generation_prompt %}<assistant>OPENING{% endif %}"""
IS_NEW = "loop.index0 > last.user"


def template(**parts: str) -> str:
    text = TEMPLATE
    for name, part in (PARTS | parts).items():
        text = text.replace(name.upper(), part)
    return text


def keeping(condition: str) -> str:
    return "{% if " + condition + " %}" + PARTS["thought"] + "{% else %}<think></think>{% endif %}"


def found(tmp_path: Path, text: str) -> dict[str, Check]:
    path = tmp_path / "mine.jinja"
    path.write_text(text, encoding="utf-8")
    return by_name(check_template(partial(load, path)))


def by_name(checks: Iterable[Check]) -> dict[str, Check]:
    return {check.name.removeprefix("chat template").lstrip(": "): check for check in checks}


NOTHING_HELPS = "--chat-template FILE"


def test_a_template_that_only_appends_is_ok(tmp_path: Path) -> None:
    """Each prompt and reply begin the next one, if the agent sends back what the model thought."""
    checks = found(tmp_path, template())
    assert {name: check.status for name, check in checks.items()} == {"": "OK", "echo": "OK"}
    assert "`reasoning`" in checks["echo"].seen


@pytest.mark.parametrize(
    ("parts", "name", "seen", "advice"),
    [
        # thinking is dropped once the user writes again; some templates have a switch
        ({"thought": keeping(IS_NEW)}, "thinking", "when the user writes again", NOTHING_HELPS),
        (
            {"thought": keeping(f"preserve_thinking or {IS_NEW}")},
            "thinking",
            "drops the thinking",
            """'{"preserve_thinking": true}'""",
        ),
        (
            {"thought": keeping(f"not (forget | default(true)) or {IS_NEW}")},
            "thinking",
            "drops the thinking",
            """'{"forget": false}'""",
        ),
        # the prompt opens a thought that no reply in the history has
        ({"thought": "</think>"}, "thinking", "never writes", NOTHING_HELPS),
        ({"thought": "", "opening": "<think></think>"}, "reply", "'<think></think>'", ""),
        # it opens one only if asked to
        (
            {
                "thought": "{% if m.reasoning %}" + PARTS["thought"] + "{% endif %}",
                "opening": "{% if enable_thinking is false %}<think></think>{% endif %}",
            },
            "reply",
            'each turn: 1\\d+ of .* with {"enable_thinking": false}',
            NOTHING_HELPS,
        ),
        ({"tools": "", "with_user": PARTS["tools"]}, "tools", "moves the tools", NOTHING_HELPS),
        ({"call": r"{{ '\n' }}" + PARTS["call"]}, "whitespace", r"writes '\\n' before a call", ""),
        (
            {"before": "{{ strftime_now('%d %B %Y') }}"},
            "date",
            "of each day: .*100%",
            NOTHING_HELPS,
        ),
        (
            {"before": "{{ date_string or strftime_now('%Y-%m-%d %H:%M') }}"},
            "date",
            "of each minute",
            '"date_string"',
        ),
        ({"opening": "<|start|>assistant"}, "thinking", "gpt-oss .* writes again", "no setting"),
        ({"before": "{{ messages | length }}"}, "history", "writes '2.*in place of '0", ""),
    ],
)
def test_what_a_template_does_is_named(
    parts: dict[str, str], name: str, seen: str, advice: str, tmp_path: Path
) -> None:
    """Each has a warning of its own, its cost, and the setting that ends it, if there is one."""
    checks = found(tmp_path, template(**parts))
    assert {other for other, check in checks.items() if check.status == "WARN"} == {name}
    assert re.search(seen, checks[name].seen)
    assert advice in (checks[name].advice or "")


class Tokenizer:
    """The routes of vLLM's tokenizer: one token for each word and each other character."""

    def __init__(self, path: Path, status: int = 200) -> None:
        self.render, self.status = load(path).render, status
        self.words: list[str] = []
        self.paths: set[str] = set()

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.paths.add(request.url.path)
        body: dict[str, Any] = json.loads(request.content)
        if self.status != 200:
            return httpx.Response(self.status, json={"error": {"message": "no chat template"}})
        if request.url.path == "/detokenize":
            return httpx.Response(
                200, json={"prompt": "".join(self.words[token] for token in body["tokens"])}
            )
        settings = body["chat_template_kwargs"]
        text = self.render(body["messages"], settings, body["add_generation_prompt"]).text
        words = re.findall(r"\w+|\W", text)
        self.words += sorted(set(words) - set(self.words))
        return httpx.Response(200, json={"tokens": [self.words.index(word) for word in words]})


def served(tokenizer: Tokenizer) -> dict[str, Check]:
    transport = httpx.MockTransport(tokenizer.answer)
    return by_name(check_served_template("http://server/v1", None, transport=transport))


def test_a_running_server_is_asked_for_tokens_only(tmp_path: Path) -> None:
    """The same is found through the two routes of the tokenizer, and counted in tokens."""
    path = tmp_path / "mine.jinja"
    path.write_text(template(thought=keeping(f"preserve_thinking or {IS_NEW}")), encoding="utf-8")
    tokenizer = Tokenizer(path)
    check = served(tokenizer)["thinking"]
    assert re.search(r"\d+ of \d+ tokens \(\d\d%\)", check.seen)
    assert "preserve_thinking" in (check.advice or "")
    assert tokenizer.paths == {"/tokenize", "/detokenize"}
    refused = served(Tokenizer(path, status=400))
    assert [check.status for check in refused.values()] == ["WARN"]
    assert "HTTP 400" in refused[""].seen
    assert "no chat template" in refused[""].seen


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{ raise_exception('one tool at a time') }}", "one tool at a time"),
        ("{% if %}", "not a jinja template"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ 'long' * 10 ** 10 }}", "MemoryError"),
    ],
    ids=["refuses", "is no template", "breaks out", "takes all memory"],
)
def test_a_template_that_fails_gets_one_line(text: str, reason: str, tmp_path: Path) -> None:
    """Templates are programs of others: sandboxed, in a process with limits."""
    path = tmp_path / "mine.jinja"
    path.write_text(text, encoding="utf-8")
    [check] = check_folder(path)
    assert (check.name, check.status) == ("chat template", "WARN")
    assert reason in check.seen


def test_a_template_that_never_ends_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is, after a limit."""
    monkeypatch.setattr(templates, "LIMIT_S", 2)
    path = tmp_path / "mine.jinja"
    path.write_text("{% for a in range(9**5) %}{% for b in range(9**5) %}{% endfor %}{% endfor %}")
    assert [check.seen for check in check_folder(path)] == ["not checked: no end after 2 s"]


@pytest.mark.parametrize(
    ("files", "seen"),
    [
        ({"chat_template.jinja": template()}, "begin the next prompt"),
        ({"tokenizer_config.json": json.dumps({"chat_template": template()})}, "begin the next"),
        ({"tokenizer_config.json": "{}"}, "no chat template"),
        ({"tokenizer_config.json": "{"}, "JSONDecodeError"),
    ],
)
def test_a_folder_is_checked_without_a_server(
    files: dict[str, str], seen: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--model DIR` checks the template alone, from each of the files that may hold it."""
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert main(["--model", str(tmp_path), "--json"]) == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert {check["name"].split(":")[0] for check in checks} == {"chat template"}
    assert seen in checks[0]["seen"]
