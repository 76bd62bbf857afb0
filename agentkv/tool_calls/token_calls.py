"""Calls between special tokens: Mistral, Kimi, K2 Horizon, MiniMax M3, DeepSeek, Gemma, gpt-oss.

The scanner calls the readers. Servers often strip the token that ends a call together with the one
that ends the turn, so JSON that is complete at the end of the reply makes a call. No text contains
such a token, so that no quote or here-document hides one, as in `xml_calls`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from agentkv.tool_calls.call import Source, bash_calls, call_of, is_bash_like
from agentkv.tool_calls.json_calls import calls_in
from agentkv.tool_calls.messages import arguments_of
from agentkv.tool_calls.reply_text import Reading, ReplyText, json_or_text

_CALL_ID = r"(?:\[CALL_ID\](?P<{}>[\w-]{{1,64}}))?"
MISTRAL_OPENER = (
    r"\[TOOL_CALLS\]\s*+(?:(?=[\[{])"
    rf"|(?P<mistral_name>[\w.-]{{1,100}}+)\s*+{_CALL_ID.format('mistral_id')}(?:\[ARGS\])?\s*+(?=\{{))"
)
MISTRAL_ARGS_OPENER = r"\[ARGS\]\s*+(?=\{)"
_MISTRAL_TOKEN = re.compile(r"\[TOOL_CALLS\]")
_MISTRAL_NAME = re.compile(rf"\s*+([\w.-]{{1,100}}+){_CALL_ID.format('id')}")

KIMI_OPENER = (
    r"<\|tool_call_begin\|>\s*+(?P<kimi_id>[^<\s]{1,200}+)\s*+<\|tool_call_argument_begin\|>\s*+"
)
KIMI_BARE_OPENER = r"functions\.[\w.-]{1,100}+:\d{1,5}+\s*+(?=\{)"
_KIMI_END = re.compile(r"<\|tool_call(?:_end|s_section_end|_begin)\|>")
_KIMI_NAME = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")

# DeepSeek's tokens have full-width bars and low blocks; copies with ASCII ones occur.
_BAR, _BLOCK = "[|\uff5c]", "[_\u2581]"
DEEPSEEK_OPENER = (
    rf"<{_BAR}tool{_BLOCK}call{_BLOCK}begin{_BAR}>(?P<deepseek_kind>[^<\n]{{1,200}}+)"
    rf"<{_BAR}tool{_BLOCK}sep{_BAR}>\s*+(?!<steptml:)"  # Step 3 writes an invoke there
    r"(?:(?P<deepseek_name>[^\n`{<]{1,200}+)\n\s*+(?:```(?:json)?\s*+)?)?"
)
_DEEPSEEK_END = re.compile(rf"<{_BAR}tool{_BLOCK}call(?:s?{_BLOCK}end|{_BLOCK}begin){_BAR}>")
_END_OF_TEXT = re.compile(r"[\s`]*+\Z")

GEMMA_OPENERS = (
    r"<\|tool_call>\s*+call:(?P<gemma_name>[\w.:-]{1,100}+)(?=\{)",
    r"<start_function_call>\s*+call:(?P<gemma_old_name>[\w.:-]{1,100}+)(?=\{)",
)
_MAX_GEMMA_TOKENS = 1_000
"""Per call; one that has more is noise."""
_GEMMA_TOKEN = re.compile(
    r"\s*+(?:(?P<quote><\|\"\|>|<escape>)|(?P<sign>[{}\[\],:])|(?P<bare>[^<{}\[\],:\s][^<{}\[\],:]*+))"
)
_GEMMA_QUOTES = {quote: re.compile(re.escape(quote)) for quote in ('<|"|>', "<escape>")}
_GEMMA_END = re.compile(r"\s*+(?:<tool_call\|>|<end_function_call>|(?=<)|\Z)")

# Source: the harmony response format (openai/harmony, docs/format.md).
HARMONY_OPENER = (
    r"<\|(?:start|channel)\|>(?P<header>[^<]{0,200}+"
    r"(?:<\|(?:channel|constrain)\|>[^<]{0,200}+){0,3}+)<\|message\|>(?:\s*+(?=\{))?"
)
_HARMONY_END = re.compile(r"<\|(?:end|call|return|start|channel)\|>")
_HARMONY_END_OF_JSON = re.compile(rf"\s*+(?:{_HARMONY_END.pattern}|\Z)")
_RECIPIENT = re.compile(r"\bto=([\w.:/-]{1,200})")
_NO_TOOLS = frozenset({"assistant", "user", "system", "developer", "all"})
# What is left of the headers once special tokens are dropped.
_BARE_START = re.compile(r"(?:assistant)?(?:analysis|commentary to=functions\.)")
_BARE_ANALYSIS = re.compile(r"(?:assistant)?analysis(?=[A-Z])")
_BARE_HEADER = re.compile(
    r"(?:\A|assistant)(?:(?P<call>(?:analysis|commentary) to=functions\.[\w.-]{1,100}+)"
    r"\s*+(?:code|json)?\s*+(?=\{)|(?P<channel>analysis|commentary(?! to=)|final))"
)


def read_mistral(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """Read a JSON list (up to v10) or a name and JSON (from v11) after Mistral's token."""
    decoded = reply.json_at(opener.end())
    if decoded is None:
        next_token = reply.next(_MISTRAL_TOKEN, opener.end())
        return Reading(next_token.start()) if next_token else reply.cut_off
    if name := opener["mistral_name"]:
        return _named(name, decoded, "mistral", opener["mistral_id"])
    return Reading(decoded[1], calls_in(decoded[0], "mistral"))


def read_mistral_args(reply: ReplyText, opener: re.Match[str]) -> Reading | None:
    """Read a name that starts a line and JSON, with only the token between them left."""
    name = _MISTRAL_NAME.fullmatch(reply.line_prefix(opener.start()) or "")
    decoded = reply.json_at(opener.end()) if name else None
    return _named(name[1], decoded, "mistral", name["id"]) if name and decoded else None


def read_kimi(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """Read Kimi K2's `functions.bash:0`, which is also the call's id, and JSON up to its end."""
    decoded = reply.json_at(opener.end())
    end = reply.next(_KIMI_END, decoded[1] if decoded else opener.end())
    if end is None:
        return reply.cut_off
    if decoded is None:
        return Reading(end.start())
    return _kimi_call(opener["kimi_id"], decoded)


def read_kimi_bare(reply: ReplyText, opener: re.Match[str]) -> Reading | None:
    """Read Kimi K2's id and the JSON right behind it, all tokens dropped."""
    decoded = reply.json_at(opener.end())
    return _kimi_call(opener[0].strip(), decoded) if decoded else None


def _kimi_call(call_id: str, decoded: tuple[object, int]) -> Reading:
    match = _KIMI_NAME.fullmatch(call_id)
    return _named(match[1] if match else call_id, decoded, "kimi_k2", call_id)


def read_deepseek(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """Read DeepSeek V3 (`function`, a name, fenced JSON) and V3.1 (a name, JSON)."""
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
    """The reading of a name and of decoded JSON, which makes a call if it is an object."""
    arguments = arguments_of(decoded[0])
    calls = [call_of(name, arguments, source, call_id)] if arguments is not None else []
    return Reading(decoded[1], calls)


def read_gemma(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """Read Gemma's `call:bash{command:<|"|>ls<|"|>}` up to the brace that closes it."""
    written = _gemma_json(reply, opener.end())
    if written is None:
        return reply.cut_off
    text, end = written
    arguments = arguments_of(text)
    closer = _GEMMA_END.match(reply.text, end)
    if arguments is None or closer is None:
        return Reading(end)
    name = opener["gemma_name"] or opener["gemma_old_name"]
    return Reading(closer.end(), [call_of(name, arguments, "gemma")])


def _gemma_json(reply: ReplyText, position: int) -> tuple[str, int] | None:
    """The object at `position` in JSON's own quotes, and the index of its end; None if broken.

    Gemma's quotes are tokens, between which nothing is escaped; names and numbers have none.
    """
    parts: list[str] = []
    depth = 0
    for _ in range(_MAX_GEMMA_TOKENS):
        if (token := _GEMMA_TOKEN.match(reply.text, position)) is None:
            return None
        position = token.end()
        if quote := token["quote"]:
            if (closer := reply.next(_GEMMA_QUOTES[quote], position)) is None:
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
            parts.append(_json_word(token["bare"].rstrip(), is_name=is_name))
    return None


def _json_word(word: str, *, is_name: bool) -> str:
    """A word without quotes as JSON: a number or a constant as it is, any other as a string."""
    return json.dumps(word) if is_name or json_or_text(word) is word else word


def with_harmony_tokens(text: str) -> str:
    """Restore the headers of a harmony reply that was decoded without special tokens.

    Any other text is returned as it is.
    """
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


def read_harmony(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """Read a message of gpt-oss: a call if it has a recipient, thinking in the analysis channel."""
    recipient = _RECIPIENT.search(opener["header"])
    if recipient and recipient[1] not in _NO_TOOLS:
        return _read_harmony_call(reply, opener, recipient[1].removeprefix("functions."))
    if "analysis" in opener["header"]:
        end = reply.next(_HARMONY_END, opener.end())
        return Reading(end.start()) if end else reply.cut_off
    return Reading(opener.end())


def _read_harmony_call(reply: ReplyText, opener: re.Match[str], name: str) -> Reading:
    is_json = reply.text.startswith("{", opener.end())
    decoded = reply.json_at(opener.end()) if is_json else None
    if decoded and _HARMONY_END_OF_JSON.match(reply.text, decoded[1]):
        return _named(name, decoded, "harmony")
    end = reply.next(_HARMONY_END, opener.end())
    if end is None:
        return reply.cut_off
    is_text = not is_json and "json" not in opener["header"] and is_bash_like(name)
    body = reply.text[opener.end() : end.start()]
    return Reading(end.start(), bash_calls(body, "harmony") if is_text else ())


# Arguments, too, stand between tokens.

_NAME = r"[\"']?(?P<{}>[^\"'<>\n]{{1,200}})[\"']?"


@dataclass(frozen=True, slots=True)
class _Pairs:
    """A dialect's pairs: `key` has groups key and type, and ends where a value begins."""

    key: re.Pattern[str]
    end_of_value: re.Pattern[str]
    end_of_call: re.Pattern[str]


# Source: vllm/tool_parsers/kimi_k3_tool_parser.py of vLLM 0.32.
KIMI_K3_OPENER = (
    rf"<\|open\|>call tool={_NAME.format('kimi_k3_name')}(?: [^<\n]{{0,200}}+)?<\|sep\|>"
)
_KIMI_K3 = _Pairs(
    key=re.compile(
        rf"\s*+<\|open\|>argument key={_NAME.format('key')}"
        r"(?: type=\"(?P<type>\w{1,40}+)\")?(?: [^<\n]{0,200}+)?<\|sep\|>"
    ),
    end_of_value=re.compile(r"<\|close\|>argument<\|sep\|>"),
    end_of_call=re.compile(r"<\|close\|>call<\|sep\|>"),
)

# Source: vllm/tool_parsers/k2_horizon_tool_parser.py of vLLM 0.32.
K2_HORIZON_OPENER = r"<ifm\|tool_call>\s*+(?P<k2_horizon_name>[\w.:/-]{1,100}+)\s*+(?=<)"
_K2_HORIZON = _Pairs(
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
    reply: ReplyText, opener: re.Match[str], source: Source, dialect: _Pairs
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
        arguments[key["key"]] = value if key["type"] in (None, "string") else json_or_text(value)
        position = closer.end()
    return Reading(end.end(), [call_of(opener[f"{source}_name"], arguments, source)])


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
