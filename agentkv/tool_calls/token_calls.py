"""Calls between special tokens: Mistral, Kimi K2, DeepSeek V3 and V3.1.

DeepSeek's tokens are spelled with full-width bars and low blocks; copies with ASCII bars occur.
"""

from __future__ import annotations

import json
import re

from agentkv.tool_calls.call import Source, bash_call, call_of, is_bash_like
from agentkv.tool_calls.json_calls import calls_in
from agentkv.tool_calls.messages import arguments_of
from agentkv.tool_calls.reply_text import Reading, ReplyText

_CALL_ID = r"(?:\[CALL_ID\](?P<{}>[\w-]{{1,64}}))?"
MISTRAL_OPENER = (
    r"\[TOOL_CALLS\]\s*+(?:(?=[\[{])"
    rf"|(?P<mistral_name>[\w.-]{{1,100}}+)\s*+{_CALL_ID.format('mistral_id')}(?:\[ARGS\])?\s*+(?=\{{))"
)
MISTRAL_ARGS_OPENER = r"\[ARGS\]\s*+(?=\{)"
KIMI_OPENER = (
    r"<\|tool_call_begin\|>\s*+(?P<kimi_id>[^<\s]{1,200}+)\s*+<\|tool_call_argument_begin\|>\s*+"
)
KIMI_BARE_OPENER = r"functions\.[\w.-]{1,100}+:\d{1,5}+\s*+(?=\{)"
_BAR, _BLOCK = "[|\uff5c]", "[_\u2581]"
DEEPSEEK_OPENER = (
    rf"<{_BAR}tool{_BLOCK}call{_BLOCK}begin{_BAR}>(?P<deepseek_kind>[^<\n]{{1,200}}+)"
    rf"<{_BAR}tool{_BLOCK}sep{_BAR}>\s*+"
    r"(?:(?P<deepseek_name>[^\n`{<]{1,200}+)\n\s*+(?:```(?:json)?\s*+)?)?"
)

_MISTRAL_TOKEN = re.compile(r"\[TOOL_CALLS\]")
_MISTRAL_NAME = re.compile(rf"\s*+([\w.-]{{1,100}}+){_CALL_ID.format('id')}")
_KIMI_END = re.compile(r"<\|tool_call(?:_end|s_section_end|_begin)\|>")
_KIMI_NAME = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")
_DEEPSEEK_END = re.compile(rf"<{_BAR}tool{_BLOCK}call(?:s?{_BLOCK}end|{_BLOCK}begin){_BAR}>")
_END_OF_TEXT = re.compile(r"[\s`]*+\Z")


def read_mistral(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """A JSON list (up to v10) or a name and JSON (from v11) after the token; nothing closes it."""
    decoded = reply.json_at(opener.end())
    if decoded is None:
        next_token = reply.next(_MISTRAL_TOKEN, opener.end())
        return Reading(next_token.start()) if next_token else reply.cut_off
    if name := opener["mistral_name"]:
        return _named(name, decoded, "mistral", opener["mistral_id"])
    return Reading(decoded[1], calls_in(decoded[0], "mistral"))


def read_mistral_args(reply: ReplyText, opener: re.Match[str]) -> Reading | None:
    """A name at the start of a line and JSON, of which only the token between them is left."""
    name = _MISTRAL_NAME.fullmatch(reply.line_prefix(opener.start()) or "")
    decoded = reply.json_at(opener.end()) if name else None
    return _named(name[1], decoded, "mistral", name["id"]) if name and decoded else None


def read_kimi(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """Kimi K2: `functions.bash:0`, which is also the call's id, and JSON up to the end token."""
    decoded = reply.json_at(opener.end())
    end = reply.next(_KIMI_END, decoded[1] if decoded else opener.end())
    if end is None:
        return reply.cut_off
    if decoded is None:
        return Reading(end.start())
    call_id = opener["kimi_id"]
    return _named(_kimi_name(call_id), decoded, "kimi_k2", call_id)


def read_kimi_bare(reply: ReplyText, opener: re.Match[str]) -> Reading | None:
    """Kimi K2 without its tokens: the id directly before the JSON."""
    call_id = opener[0].strip()
    decoded = reply.json_at(opener.end())
    return _named(_kimi_name(call_id), decoded, "kimi_k2", call_id) if decoded else None


def read_deepseek(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """DeepSeek V3 (`function`, name, fenced JSON) and V3.1 (name, JSON).

    Its end tokens are often stripped with the one that ends the turn: JSON that is complete at
    the end of the text is a call.
    """
    decoded = reply.json_at(opener.end())
    end = reply.next(_DEEPSEEK_END, decoded[1] if decoded else opener.end())
    if decoded is None:
        return Reading(end.start()) if end else reply.cut_off
    if end is None and not _END_OF_TEXT.match(reply.text, decoded[1]):
        return reply.cut_off
    name = opener["deepseek_name"] or opener["deepseek_kind"]
    reading = _named(name.strip(), decoded, "deepseek")
    return Reading(end.start() if end else len(reply.text), reading.calls)


def _named(
    name: str, decoded: tuple[object, int], source: Source, call_id: str | None = None
) -> Reading:
    arguments = arguments_of(decoded[0])
    calls = [call_of(name, arguments, source, call_id)] if arguments is not None else []
    return Reading(decoded[1], calls)


def _kimi_name(call_id: str) -> str:
    match = _KIMI_NAME.fullmatch(call_id)
    return match[1] if match else call_id


# Gemma's calls: `call:bash{command:<|"|>ls<|"|>}` behind a token, JSON but for its
# quotes.
# Between quotes, which are tokens of their own, nothing is escaped; names and numbers
# have none.

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


# gpt-oss writes messages in channels: analysis is thinking, a recipient makes a
# message a call.
# Source: the harmony response format (openai/harmony, docs/format.md).

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
