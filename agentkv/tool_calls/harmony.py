"""gpt-oss writes messages in channels: analysis is thinking, a recipient makes a message a call.

Source: the harmony response format (openai/harmony, docs/format.md).
"""

from __future__ import annotations

import re

from agentkv.tool_calls.call import bash_call, call_of, is_bash_like
from agentkv.tool_calls.messages import arguments_of
from agentkv.tool_calls.reply_text import Reading, ReplyText

OPENER = (
    r"<\|(?:start|channel)\|>(?P<header>[^<]{0,200}+"
    r"(?:<\|(?:channel|constrain)\|>[^<]{0,200}+){0,3}+)<\|message\|>(?:\s*+(?=\{))?"
)

_END = re.compile(r"<\|(?:end|call|return|start|channel)\|>")
_END_OF_JSON = re.compile(r"\s*+(?:<\|(?:end|call|return|start|channel)\|>|\Z)")
_RECIPIENT = re.compile(r"\bto=([\w.:/-]{1,200})")
_NO_TOOLS = frozenset({"assistant", "user", "system", "developer", "all"})
# What is left of the headers once special tokens are dropped.
_BARE_START = re.compile(r"(?:assistant)?(?:analysis|commentary to=functions\.)")
_BARE_ANALYSIS = re.compile(r"(?:assistant)?analysis(?=[A-Z])")
_BARE_HEADER = re.compile(
    r"(?:\A|assistant)(?:(?P<call>(?:analysis|commentary) to=functions\.[\w.-]{1,100}+)"
    r"\s*+(?:code|json)?\s*+(?=\{)|(?P<channel>analysis|commentary(?! to=)|final))"
)


def with_tokens(text: str) -> str:
    """The text with its headers restored, if it is harmony decoded without special tokens."""
    if not _BARE_START.match(text):
        return text
    headers = list(_BARE_HEADER.finditer(text))
    has_call = any(header["call"] for header in headers)
    if len(headers) < 2 and not has_call and not _BARE_ANALYSIS.match(text):
        return text
    return _BARE_HEADER.sub(
        lambda header: (
            f"<|start|>assistant<|channel|>{header['call'] or header['channel']}<|message|>"
        ),
        text,
    )


def read_message(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """A call, a thought that is skipped, or the beginning of visible text.

    The token after a call ends the turn and is often stripped: complete JSON at the end of the
    text is a call.
    """
    recipient = _RECIPIENT.search(opener["header"])
    if recipient and recipient[1] not in _NO_TOOLS:
        return _read_call(reply, opener, recipient[1].removeprefix("functions."))
    if "analysis" in opener["header"]:
        end = reply.next(_END, opener.end())
        return Reading(end.start()) if end else reply.cut_off
    return Reading(opener.end())


def _read_call(reply: ReplyText, opener: re.Match[str], name: str) -> Reading:
    is_json = reply.text.startswith("{", opener.end())
    decoded = reply.json_at(opener.end()) if is_json else None
    if decoded and _END_OF_JSON.match(reply.text, decoded[1]):
        arguments = arguments_of(decoded[0])
        calls = [] if arguments is None else [call_of(name, arguments, "harmony")]
        return Reading(decoded[1], calls)
    end = reply.next(_END, opener.end())
    if end is None:
        return reply.cut_off
    is_text = not is_json and "json" not in opener["header"] and is_bash_like(name)
    body = reply.text[opener.end() : end.start()]
    return Reading(end.start(), bash_call(body, "harmony") if is_text else ())
