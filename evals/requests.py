"""Reads the messages of requests as clients write them, and names what changed between two.

For logs of requests, by the same rules as the server's: no tokens, no tokenizer. Forms: OpenAI's
chat and responses, Anthropic's, Claude Code's and Codex's own, OpenTelemetry's GenAI messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentkv.integrations.vllm.watch.changes import (
    ROLES,
    Message,
    change_between,
    num_common,
    words_that_differ,
)
from agentkv.tool_calls.reply_text import json_or_text

_SYSTEM = ("system", "instructions", "gen_ai.system_instructions")
_DEFINED = ("tools", "gen_ai.tool.definitions")
_SAID = ("messages", "input", "gen_ai.input.messages", "gen_ai.output.messages")
_RESULTS = ("_result", "_output", "_response")
_CALLS = ("_use", "_call")
_THOUGHTS = ("thinking", "reasoning")
MAX_BACK = 8
"""Calls back to which one may go on, such as to before a side request."""
MIN_CHARS = 24
"""With fewer in common at their start two prompts are of two conversations: chosen."""
_TEXTS = ("text", "content", "parts", "thinking", "summary", "output", "result", "response")
"""Members that hold the text of a part, in the order in which they count."""


def messages_of(request: Mapping[str, Any]) -> list[Message]:
    """Return the messages of a request; its tools stand behind the system prompt."""
    system, tools, said = (_held(request, names) for names in (_SYSTEM, _DEFINED, _SAID))
    found: list[Message] = []
    _add(found, "system", system)
    for item in said if isinstance(said, list) else [said]:
        _add(found, _role_of(item), item)
    if isinstance(tools, list):
        listed = "\n".join(_json(tool) for tool in tools if isinstance(tool, Mapping))
        has_system = found and found[0].role == "system"
        start = f"{found.pop(0).text}\n" if has_system else ""
        found.insert(0, Message("system", start + listed))
    return found


def _held(request: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Return what the first of these members holds, in spans as text of JSON."""
    held = next((request[name] for name in names if request.get(name)), None)
    return json_or_text(held) if isinstance(held, str) else held


@dataclass(slots=True)
class LoggedCall:
    """Holds what a log has of a call of a model; no messages where it has counts alone."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    """Found in its cache by the server, if that tells."""
    messages: Sequence[Message] = ()
    reply: Sequence[Message] = ()

    @property
    def context(self) -> list[Message]:
        """Return what it leaves for the next call to go on from."""
        return [*self.messages, *self.reply]

    @property
    def context_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


def last_change(calls: Sequence[LoggedCall]) -> dict[str, Any] | None:
    """Return what is first in another way in a job's last call than in the one before.

    That is the one with which it has most in common, of the last few; the newest of equals. Without
    a change there are only the `of_tokens` that could be found: 0 for a side request, which is
    shorter and has another system prompt. None without messages, or if they are not what was sent,
    by their counts. The place is a token, as far as the share of the text tells.
    """
    if len(calls) < 2 or not calls[-2].messages or not calls[-1].messages:
        return None
    call, before, now = calls[-1], calls[-2], calls[-1].messages
    if num_common(before.context, now) < len(before.context):
        newest_first = calls[-2 : -2 - MAX_BACK : -1]
        before = max(newest_first, key=lambda each: num_common(each.context, now))
    known = before.context
    at = num_common(known, now)
    if at == len(known) and call.prompt_tokens < before.prompt_tokens:
        return None
    if at in (len(known), len(now)):
        return {"of_tokens": before.context_tokens}
    one, other = known[at].text, now[at].text
    start = num_common(one, other)
    is_shorter = call.prompt_tokens < before.context_tokens
    if is_shorter and not at and start < MIN_CHARS and now[0].role == "system":
        return {"of_tokens": 0}
    facts = change_between(known, now, len(before.messages), is_shorter=is_shorter)
    if facts["kind"] == "history" and at < len(calls[0].messages):
        facts["kind"] = "start"
    num_tokens = before.context_tokens if before.reply else before.prompt_tokens
    same = _num_chars(known[:at]) + start
    shares = same / _num_chars(known), same / _num_chars(now)
    place = int(min(num_tokens * shares[0], call.prompt_tokens * shares[1]))
    return {
        **facts,
        **words_that_differ(one[:start], one[start:], other[start:]),
        # what was found is as it was
        "diverged_at": min(before.context_tokens, max(place, call.cached_tokens or 0)),
        "of_tokens": before.context_tokens,
    }


def _num_chars(messages: Sequence[Message]) -> int:
    return max(1, sum(len(message.text) for message in messages))


def _add(found: list[Message], role: str, item: Any) -> None:
    """Add what a message says; the items of a reply (of OpenAI's responses) are one message."""
    is_begun = role == "assistant" and isinstance(item, Mapping) and "type" in item
    for whose, is_result, text in _pieces(role, item):
        if is_begun and not is_result and found and found[-1].role == whose:
            text = f"{found.pop().text}\n{text}"
        found.append(Message(whose, text))
        is_begun = True


def _pieces(role: str, part: Any) -> Iterator[tuple[str, bool, str]]:
    """Yield whose each piece of a message is, if it is a tool's result, and its text."""
    if isinstance(part, list):
        for each in part:
            yield from _pieces(role, each)
    elif not isinstance(part, Mapping):
        if part:
            yield role, False, str(part)
    elif (kind := str(part.get("type") or "message")).endswith(_RESULTS):
        yield "tool", True, _text(part)
    elif kind.endswith(_THOUGHTS):
        yield role, False, f"<think>\n{_text(part)}\n</think>"
    elif kind == "message":
        if thought := part.get("reasoning") or part.get("reasoning_content"):
            yield role, False, f"<think>\n{_text(thought)}\n</think>"
        for name in ("content", "parts", "tool_calls"):
            yield from _pieces(role, part.get(name))
    else:
        yield role, False, _text(part)


def _role_of(item: Any) -> str:
    if not isinstance(item, Mapping):
        return "user"
    kind = str(item.get("type") or "")
    is_reply = kind.endswith((*_CALLS, *_THOUGHTS))
    role = str(item.get("role") or ("assistant" if is_reply else "user"))
    return ROLES.get(role, role)


def _text(part: Any) -> str:
    """Return the text of a part; the whole of it, such as an image, if it has none."""
    if isinstance(part, list):
        return "\n".join(map(_text, part))
    if not isinstance(part, Mapping):
        return str(part).strip()
    held = next((part[name] for name in _TEXTS if part.get(name)), None)
    return _json(part) if held is None else _text(held)


def _json(part: Mapping[str, Any]) -> str:
    """Return it as text, without marks that move from turn to turn."""
    kept = {name: value for name, value in part.items() if name != "cache_control"}
    return json.dumps(kept, ensure_ascii=False)
