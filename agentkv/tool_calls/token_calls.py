"""Calls between special tokens: Mistral, Kimi K2, DeepSeek, Gemma, gpt-oss.

The scanner calls the readers. Servers often strip the token that ends a call together with the one
that ends the turn, so JSON that is complete at the end of the reply makes a call. No text contains
such a token, so that no quote or here-document hides one, as in `xml_calls`.
"""

from __future__ import annotations

import json
import re

from agentkv.tool_calls.call import Source, bash_calls, call_of, is_bash_like
from agentkv.tool_calls.messages import arguments_of
from agentkv.tool_calls.reply_text import Reading, ReplyText, json_or_text

# DeepSeek's tokens have full-width bars and low blocks; copies with ASCII ones occur.
_BAR, _BLOCK = "[|\uff5c]", "[_\u2581]"
NAMED_OPENERS = (
    r"\[TOOL_CALLS\]\s*+(?P<mistral_name>[\w.-]{1,100}+)\s*+"
    r"(?:\[CALL_ID\](?P<mistral_id>[\w-]{1,64}))?(?:\[ARGS\])?\s*+(?=\{)",
    r"<\|tool_call_begin\|>\s*+(?P<kimi_id>[^<\s]{1,200}+)\s*+<\|tool_call_argument_begin\|>\s*+",
    r"functions\.(?P<kimi_name>[\w.-]{1,100}+):\d{1,5}+\s*+(?=\{)",
    rf"<{_BAR}tool{_BLOCK}call{_BLOCK}begin{_BAR}>(?P<deepseek_kind>[^<\n]{{1,200}}+)"
    rf"<{_BAR}tool{_BLOCK}sep{_BAR}>\s*+(?!<steptml:)"  # Step 3 writes an invoke there
    r"(?:(?P<deepseek_name>[^\n`{<]{1,200}+)\n\s*+(?:```(?:json)?\s*+)?)?",
    r"to=functions\.(?P<harmony_name>[\w.-]{1,100}+)"
    r"(?:\s*+(?:<\|\w{1,20}\|>|commentary|analysis|json|code))*+\s*+(?=\{)",
)
_KIMI_NAME = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")
_NEXT_TOKEN = re.compile(rf"<{_BAR}|\[TOOL_CALLS\]")
_CLOSING_FENCE = re.compile(r"\s*+```(?=<|\s*+\Z)")

GEMMA_OPENERS = (
    r"<\|tool_call>\s*+call:(?P<gemma_name>[\w.:-]{1,100}+)(?=\{)",
    r"<start_function_call>\s*+call:(?P<gemma_old_name>[\w.:-]{1,100}+)(?=\{)",
)
_GEMMA_WORD = re.compile(
    r"(?P<quote><\|\"\|>|<escape>)(?P<text>.*?)(?P=quote)"
    r"|(?P<word>[^<{}\[\],:\s][^<{}\[\],:]*+)(?P<is_name>:)?+",
    re.DOTALL,
)
_GEMMA_END = re.compile(
    r"<(?:(?P<closes>tool_call\||end_function_call)|\|tool_call|start_function_call|turn\|)>"
)

# Source: the harmony response format (openai/harmony, docs/format.md).
HARMONY_OPENER = (
    r"<\|(?:start|channel)\|>(?P<header>[^<]{0,200}+"
    r"(?:<\|(?:channel|constrain)\|>[^<]{0,200}+){0,3}+)<\|message\|>(?:\s*+(?=\{))?"
)
_HARMONY_END = re.compile(r"<\|(?:end|eom|call|return|start|channel)\|>")
_ELEMENT = re.compile(r"\s*+<\w+:")
_HARMONY_END_OF_JSON = re.compile(r"\s*+(?:<\||assistant|\Z)")
_RECIPIENT = re.compile(r"\bto=([\w.:/-]{1,200})")
_NO_TOOLS = frozenset({"assistant", "user", "system", "developer", "all"})
_THINKING = re.compile(r"analysis|to=self")  # Muse Glimmer's, else gpt-oss's


def read_named(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """Read a name and JSON behind it: of Mistral from v11 on, Kimi K2 (whose id holds the name),
    DeepSeek V3 (`function`, a name, fenced JSON) and V3.1, gpt-oss with its tokens dropped."""
    decoded = reply.json_at(opener.end())
    if decoded is None:
        following = reply.next(_NEXT_TOKEN, opener.end())
        return Reading(following.start()) if following else reply.cut_off
    if fence := _CLOSING_FENCE.match(reply.text, decoded[1]):
        decoded = decoded[0], fence.end()
    if call_id := opener["kimi_id"] or (opener["kimi_name"] and opener[0].strip()):
        match = _KIMI_NAME.fullmatch(call_id)
        return _named(match[1] if match else call_id, decoded, "kimi_k2", call_id)
    if name := opener["mistral_name"]:
        return _named(name, decoded, "mistral", opener["mistral_id"])
    if name := opener["harmony_name"]:
        return _named(name, decoded, "harmony")
    return _named(opener["deepseek_name"] or opener["deepseek_kind"], decoded, "deepseek")


def _named(
    name: str, decoded: tuple[object, int], source: Source, call_id: str | None = None
) -> Reading:
    """The reading of a name and of decoded JSON, which makes a call if it is an object."""
    arguments = arguments_of(decoded[0])
    calls = [call_of(name, arguments, source, call_id)] if arguments is not None else []
    return Reading(decoded[1], calls)


def read_gemma(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """Read Gemma's `call:bash{command:<|"|>ls<|"|>}` up to the token that ends it.

    Its quotes are tokens, between which nothing is escaped; names and numbers have none.
    """
    closer = reply.next(_GEMMA_END, opener.end())
    end = closer.start() if closer else len(reply.text)
    text = _GEMMA_WORD.sub(_as_json, reply.text[opener.end() : end])
    arguments = json_or_text(text if text.endswith("}") or closer else text + "}")
    if not isinstance(arguments, dict):
        if closer:
            return Reading(end)
        arguments = {}  # cut off in an argument
    name = opener["gemma_name"] or opener["gemma_old_name"]
    if closer and closer["closes"]:
        end = closer.end()
    return Reading(end, [call_of(name, arguments, "gemma")])


def _as_json(word: re.Match[str]) -> str:
    """A text, name or constant of Gemma's in JSON; any other word is a text."""
    if word["quote"]:
        return json.dumps(word["text"])
    if word["is_name"]:
        return f"{json.dumps(word['word'])}:"
    text = word["word"].rstrip()
    return json.dumps(text) if json_or_text(text) is text else text


def read_harmony(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """Read a message of gpt-oss: a call if it has a recipient, thinking in the analysis channel."""
    recipient = _RECIPIENT.search(opener["header"])
    if recipient is None or recipient[1] in (*_NO_TOOLS, "self"):
        if not _THINKING.search(opener["header"]):
            return Reading(opener.end())
        end = reply.next(_HARMONY_END, opener.end())
        return Reading(end.start()) if end else reply.cut_off
    if _ELEMENT.match(reply.text, opener.end()):  # of Muse Glimmer, read on its own
        return Reading(opener.end())
    name = recipient[1].removeprefix("functions.")
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
