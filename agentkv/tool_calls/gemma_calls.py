"""Gemma's calls: `call:bash{command:<|"|>ls<|"|>}` behind a token, JSON but for its quotes.

Between quotes, which are tokens of their own, nothing is escaped; names and numbers have none.
"""

from __future__ import annotations

import json
import re

from agentkv.tool_calls.call import call_of
from agentkv.tool_calls.messages import arguments_of
from agentkv.tool_calls.reply_text import Reading, ReplyText

OPENERS = (
    r"<\|tool_call>\s*+call:(?P<gemma_name>[\w.:-]{1,100}+)(?=\{)",
    r"<start_function_call>\s*+call:(?P<gemma_old_name>[\w.:-]{1,100}+)(?=\{)",
)

_MAX_TOKENS = 1_000
"""In one call; what has more is noise."""
_TOKEN = re.compile(
    r"\s*+(?:(?P<quote><\|\"\|>|<escape>)|(?P<sign>[{}\[\],:])|(?P<bare>[^<{}\[\],:\s][^<{}\[\],:]*+))"
)
_QUOTES = {quote: re.compile(re.escape(quote)) for quote in ('<|"|>', "<escape>")}
_END_OF_CALL = re.compile(r"\s*+(?:<tool_call\|>|<end_function_call>|(?=<)|\Z)")


def read_call(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """A call up to the brace that closes it; its end token is often dropped with the turn's."""
    written = _json_at(reply, opener.end())
    if written is None:
        return reply.cut_off
    text, end = written
    arguments = arguments_of(text)
    closer = _END_OF_CALL.match(reply.text, end)
    if arguments is None or closer is None:
        return Reading(end)
    name = opener["gemma_name"] or opener["gemma_old_name"]
    return Reading(closer.end(), [call_of(name, arguments, "gemma")])


def _json_at(reply: ReplyText, position: int) -> tuple[str, int] | None:
    """The object that opens there as JSON, and where it ends; None if it does not."""
    parts: list[str] = []
    depth = 0
    for _ in range(_MAX_TOKENS):
        if (token := _TOKEN.match(reply.text, position)) is None:
            return None
        position = token.end()
        if quote := token["quote"]:
            if (closer := reply.next(_QUOTES[quote], position)) is None:
                return None
            parts.append(json.dumps(reply.text[position : closer.start()]))
            position = closer.end()
        elif sign := token["sign"]:
            parts.append(sign)
            depth += (sign in "{[") - (sign in "}]")
            if depth == 0:
                return "".join(parts), position
        else:
            is_name = reply.text.startswith(":", position)
            parts.append(_bare(token["bare"].rstrip(), is_name=is_name))
    return None


def _bare(word: str, *, is_name: bool) -> str:
    """A word without quotes: a number or a constant as it is, all else a text."""
    try:
        json.loads(word)
    except (ValueError, RecursionError):
        return json.dumps(word)
    return json.dumps(word) if is_name else word
