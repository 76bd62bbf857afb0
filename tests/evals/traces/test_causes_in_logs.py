"""Without a server `agentkv explain` names what broke a prompt, from the messages of a log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentkv.cli import main as agentkv
from tests.evals.trace_rows import own, write_lines
from tests.evals.traces.test_logs import claude, codex, reply, span, used
from tests.integrations.vllm.watch.test_causes import CASES, Message, said

OTHERS = (
    *("thoughts dropped", "one thought dropped", "an empty thought"),
    *("another conversation", "another system prompt"),
)
"""Causes that lie in how messages become text, and a request that is a side request."""
NAMES = [
    name
    for name, (_, _, _, template, _, options) in CASES.items()
    if template == "chatml" and not options and name not in OTHERS
]


def parts(message: Message, texts: str, thoughts: str) -> list[Message]:
    """A message's thought and text as parts, `texts` and `thoughts` by the names of their texts."""
    found = [{"type": "text", texts: message["content"]}]
    if message["thought"]:
        found.insert(0, {"type": thoughts, thoughts: message["thought"]})
    return found


def anthropic(message: Message) -> Message:
    content = parts(message, "text", "thinking")
    if message["role"] == "tool":
        content = [{"type": "tool_result", "tool_use_id": "t", "content": content}]
    content[-1]["cache_control"] = {"type": "ephemeral"}
    return {"role": "assistant" if message["role"] == "assistant" else "user", "content": content}


def spoken(message: Message) -> Message:
    """A message in OpenTelemetry's GenAI form."""
    found = parts(message, "content", "reasoning")
    if message["role"] == "tool":
        found = [{"type": "tool_call_response", "id": "t", "response": message["content"]}]
    return {"role": message["role"], "parts": found}


def as_chat(number: int, messages: list[Message], answer: Message, **body: Any) -> Message:
    asked = [{**each, "reasoning": each["thought"]} for each in [*messages, answer]]
    return own(turn=number, messages=asked[:-1], reply=asked[-1], **body)


def as_anthropic(number: int, messages: list[Message], answer: Message, **body: Any) -> Message:
    (system, *said), answer = messages, anthropic(answer)
    said = [anthropic(each) for each in said]
    return own(turn=number, system=system["content"], messages=said, reply=answer, **body)


def as_spans(number: int, messages: list[Message], answer: Message, **body: Any) -> Message:
    """The messages stand in an event of the second span, as some write them."""
    counts = {"usage__input_tokens": body["prompt_tokens"], "usage__output_tokens": 10}
    made = span(number + 1, 0, number * 9.0, number * 9.0 + 1, operation__name="chat", **counts)
    held = {
        "input__messages": json.dumps([*map(spoken, messages)]),
        "output__messages": json.dumps([{**spoken(answer), "finish_reason": "stop"}]),
        "tool__definitions": json.dumps(body["tools"]),
    }
    told = span(0, 0, 0.0, 0.0, **held)["attributes"]
    if number:
        made["events"] = [{"name": "details", "attributes": told}]
    else:
        made["attributes"] += told
    return {"resourceSpans": [{"scopeSpans": [{"spans": [made]}]}]}


def answer_of(name: str) -> Message:
    """The reply between both requests of a case; else the one that the second request repeats."""
    _, (was, _), (now, _), _, text, _ = CASES[name]
    if text is None:
        return [*now, *[said("assistant", "Done.")] * 99][len(was)]
    thought, end, rest = text.removeprefix("<think>").rpartition("</think>")
    return said("assistant", rest.removesuffix("<|im_end|>").strip(), thought if end else "")


@pytest.mark.parametrize("form", [as_chat, as_anthropic, as_spans], ids=lambda form: form.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_a_planted_cause_is_named_from_a_log(
    name: str, form: Callable[..., Message], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cause that a server names from tokens is found in the messages, and ends with 1."""
    (_, change, *place), was, now, *_ = CASES[name]
    rows = [
        form(turn, messages, answer_of(name), tools=tools, prompt_tokens=len(str(messages)) // 4)
        for turn, (messages, tools) in enumerate((was, now))
    ]
    log = str(write_lines(tmp_path / "log.jsonl", rows))
    assert agentkv(["explain", log, "--json"]) == 1
    (job,) = json.loads(capsys.readouterr().out)["jobs"]
    miss = job["turns"][1]["miss"]
    change, _, cause = change.partition("/")
    assert (miss["change"], miss["cause"] or "") == (change, cause or miss["cause"] or "")
    assert "".join(place) in miss["why"]
    assert agentkv(["explain", log]) == 1
    shown = capsys.readouterr().out
    assert miss["advice"] in shown
    assert "counts alone" not in shown


@pytest.mark.parametrize("form", [as_chat, as_anthropic, as_spans], ids=lambda form: form.__name__)
def test_a_prompt_that_goes_on_is_whole(form: Callable[..., Message], tmp_path: Path) -> None:
    """A request that repeats what was said, in the form of its log, breaks nothing."""
    _, (was, tools), (now, _), *_ = CASES["parallel results turn"]
    messages = [*was, said("assistant", "So."), now[-1]]
    rows = [
        form(0, was, messages[-2], tools=tools, prompt_tokens=900),
        form(1, messages, now[-2], tools=tools, prompt_tokens=990),
    ]
    assert agentkv(["explain", str(write_lines(tmp_path / "log.jsonl", rows))]) == 0


def test_a_side_request_breaks_nothing(tmp_path: Path) -> None:
    """It is shorter and begins otherwise; what follows goes on from what was before it."""
    _, (was, tools), (title, _), *_ = CASES["another conversation"]
    later = [*was, said("assistant", "So."), said("user", "Go on.")]
    rows = [
        as_chat(turn, messages, said("assistant", "So."), tools=tools, prompt_tokens=prompt)
        for turn, (messages, prompt) in enumerate([(was, 900), (title, 90), (later, 990)])
    ]
    assert agentkv(["explain", str(write_lines(tmp_path / "log.jsonl", rows))]) == 0


def test_a_summary_and_a_rewound_session_of_claude_code_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each line names the one that it answers, so that what was left behind is known."""
    rows = [
        claude(0.0, "user", "fix the parser " * 9, uuid="1", parentUuid=None),
        claude(1.0, "assistant", "found it " * 9, uuid="2", parentUuid="1", **reply(400, 0, 30, 1)),
        claude(2.0, "user", "now test it " * 9, uuid="3", parentUuid="2"),
        claude(3.0, "assistant", "done", uuid="4", parentUuid="3", **reply(60, 430, 9, 2)),
        claude(4.0, "user", "no, document it " * 9, uuid="5", parentUuid="2"),
        claude(5.0, "assistant", "so", uuid="6", parentUuid="5", **reply(80, 430, 9, 3)),
        claude(6.0, "user", "they fixed it", uuid="7", parentUuid="x", isCompactSummary=True),
        claude(7.0, "assistant", "well", uuid="8", parentUuid="7", **reply(99, 200, 9, 4)),
    ]
    assert agentkv(["explain", str(write_lines(tmp_path / "s1.jsonl", rows))]) == 1
    shown = capsys.readouterr().out
    assert "turn 3: found 430 of 499 tokens\n      diverged at token 430 of 499: " in shown
    assert "turn 4: found 200 of 299 tokens" in shown
    assert "messages were left out or summed up, the first of them in message 0 (user)" in shown


def test_a_compacted_codex_thread_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its rollout tells what took the place of the history."""

    def item(second: float, role: str, text: str) -> Message:
        content = [{"type": "input_text" if role == "user" else "output_text", "text": text}]
        return codex(second, "response_item", type="message", role=role, content=content)

    rows = [
        codex(0.0, "session_meta", id="t", instructions="You are Codex. " * 9),
        item(0.1, "user", "fix the parser " * 9),
        item(1.0, "assistant", "found it " * 9),
        used(1.0, 500, 0, 30, 530),
        item(2.0, "user", "now test it"),
        item(3.0, "assistant", "done"),
        used(3.0, 560, 500, 9, 1099),
        codex(4.0, "compacted", message="They fixed it."),
        item(5.0, "user", "go on"),
        item(6.0, "assistant", "well"),
        used(6.0, 300, 100, 9, 1408),
    ]
    assert agentkv(["explain", str(write_lines(tmp_path / "rollout.jsonl", rows))]) == 1
    shown = capsys.readouterr().out
    assert "turn 2" not in shown
    assert "messages were left out or summed up, the first of them in message 1 (user)" in shown
