"""Calls with arguments between tokens that no text contains: Kimi K3, K2 Horizon, MiniMax M3.

The tokens are unmistakable, so that no quote or here-document hides one, as in `xml_calls`. The
scanner calls the readers.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from agentkv.tool_calls.call import Source, call_of
from agentkv.tool_calls.reply_text import Reading, ReplyText

_NAME = r"[\"']?(?P<{}>[^\"'<>\n]{{1,200}})[\"']?"


@dataclass(frozen=True, slots=True)
class _Dialect:
    """The patterns of a dialect: `key` has groups key and type, and ends where a value begins."""

    key: re.Pattern[str]
    end_of_value: re.Pattern[str]
    end_of_call: re.Pattern[str]


# Source: vllm/tool_parsers/kimi_k3_tool_parser.py of vLLM 0.32.
KIMI_K3_OPENER = (
    rf"<\|open\|>call tool={_NAME.format('kimi_k3_name')}(?: [^<\n]{{0,200}}+)?<\|sep\|>"
)
_KIMI_K3 = _Dialect(
    key=re.compile(
        rf"\s*+<\|open\|>argument key={_NAME.format('key')}"
        r"(?: type=\"(?P<type>\w{1,40}+)\")?(?: [^<\n]{0,200}+)?<\|sep\|>"
    ),
    end_of_value=re.compile(r"<\|close\|>argument<\|sep\|>"),
    end_of_call=re.compile(r"<\|close\|>call<\|sep\|>"),
)

# Source: vllm/tool_parsers/k2_horizon_tool_parser.py of vLLM 0.32.
K2_HORIZON_OPENER = r"<ifm\|tool_call>\s*+(?P<k2_horizon_name>[\w.:/-]{1,100}+)\s*+(?=<)"
_K2_HORIZON = _Dialect(
    key=re.compile(
        r"\s*+<ifm\|arg_key>(?P<key>[^<\n]{1,200}+)</ifm\|arg_key>\s*+"
        r"(?:<ifm\|arg_type>(?P<type>[^<\n]{1,40}+)</ifm\|arg_type>\s*+)?<ifm\|arg_value>"
    ),
    end_of_value=re.compile(r"</ifm\|arg_value>"),
    end_of_call=re.compile(r"</ifm\|tool_call>"),
)

# Source: vllm/parser/minimax_m3.py of vLLM 0.32.
_MARK = "]<]minimax[>["
MINIMAX_M3_OPENER = (
    rf"(?:{re.escape(_MARK)})<invoke\s++name\s*+=\s*+{_NAME.format('minimax_m3_name')}\s*+>"
)
_MINIMAX_M3_END = re.compile(re.escape(f"{_MARK}</invoke>"))
_MINIMAX_M3_KEY = re.compile(r"<([^<>/\s]{1,200}+)>")


def read_kimi_k3(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """Read Kimi K3's call and its arguments, each between tokens of its own."""
    return _read_pairs(reply, opener, "kimi_k3", _KIMI_K3)


def read_k2_horizon(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """Read K2 Horizon's name and its keys, types and values in turn."""
    return _read_pairs(reply, opener, "k2_horizon", _K2_HORIZON)


def _read_pairs(
    reply: ReplyText, opener: re.Match[str], source: Source, dialect: _Dialect
) -> Reading:
    """Read arguments one by one, each text or, with another type, JSON; cut off without an end."""
    end = reply.next(dialect.end_of_call, opener.end())
    if end is None:
        return reply.cut_off
    arguments: dict[str, object] = {}
    position = opener.end()
    while key := dialect.key.match(reply.text, position, end.start()):
        closer = dialect.end_of_value.search(reply.text, key.end(), end.start())
        if closer is None:
            return Reading(end.end())
        value = reply.text[key.end() : closer.start()]
        arguments[key["key"]] = value if key["type"] in (None, "string") else _decoded(value)
        position = closer.end()
    return Reading(end.end(), [call_of(opener[f"{source}_name"], arguments, source)])


def _decoded(value: str) -> object:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def read_minimax_m3(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """Read elements named after the arguments, with a mark before each tag; a nested element is
    left out. Cut off without an end of the call."""
    end = reply.next(_MINIMAX_M3_END, opener.end())
    if end is None:
        return reply.cut_off
    arguments: dict[str, object] = {}
    depth = 0
    for piece in reply.text[opener.end() : end.start()].split(_MARK):
        if piece.startswith("</"):
            depth -= 1
        elif key := _MINIMAX_M3_KEY.match(piece):
            if depth == 0:
                arguments[key[1]] = piece[key.end() :]
            depth += 1
    return Reading(end.end(), [call_of(opener["minimax_m3_name"], arguments, "minimax_m3")])
