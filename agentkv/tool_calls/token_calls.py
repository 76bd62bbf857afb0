"""Calls between special tokens: Mistral, Kimi K2, DeepSeek V3 and V3.1.

DeepSeek's tokens are spelled with full-width bars and low blocks; copies with ASCII bars occur.
"""

from __future__ import annotations

import re

from agentkv.tool_calls.call import Source, call_of
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
