"""Where a prompt leaves what the turn before left in the cache, and what became of the text there.

Without `show_prompts` the place is a block, found by hashes, and its position gives the kind.
With it the tokens of the last turn are at hand: a background thread looks for the text of each
prompt in the other, and names what has changed. Called by MissWatcher.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any

from ..retention.conversations import MAX_REWRITTEN_TOKENS

PIECE_TOKENS = 1024
"""Tokens decoded at once, within a millisecond, so that no other thread waits for longer."""
MAX_READ_TOKENS = 65_536
"""Tokens decoded before the first difference, and of each prompt behind it."""
SHOWN_CHARS = 60
"""Characters shown before the first difference, and of each of both texts; an edit has no more."""
PROBE_CHARS = 48
"""Characters that stand once in both prompts where the text goes on; half of them at the end."""

_MESSAGE = re.compile(
    r"<[|\uff5c]?(?:im_start|start_header_id|header_start|start|start_of_turn|turn)[|\uff5c]?>"
    r"(?:\s*(system|developer|user|assistant|model|tool|observation|ipython|functions))?"
    r"|<[|\uff5c](?:im_)?(system|user|assistant|observation|tool)(?:_\w+)?[|\uff5c]>"
    r"|\[(/?INST|SYSTEM_PROMPT|TOOL_RESULTS|AVAILABLE_TOOLS)\]",
    re.IGNORECASE,
)
"""How a message begins: ChatML, Llama, gpt-oss, Gemma; GLM, Phi, DeepSeek, Kimi; Mistral."""
_ROLES = {
    **{"model": "assistant", "/inst": "assistant", "inst": "user", "developer": "system"},
    **{"system_prompt": "system", "available_tools": "system", "observation": "tool"},
    **{"tool_results": "tool", "functions": "tool", "ipython": "tool"},
}
_THOUGHT = re.compile(
    r"<(/)?(?:\w+:)?(?:think|thinking|thought|reasoning)(?::\w+)?>|\[(/)?THINK\]"
    r"|<\|(?:START|(END))_THINKING\|>|<\|channel\|>analysis|<\|channel>thought|\u25c1(/)?think\u25b7"
)
"""Where a thought begins, or, with a group, ends."""
_TOOL = re.compile(
    r'"name"\s*:\s*"([^"\\]{1,64})"|<function>\s*<name>([^<]{1,64})</name>'
    r"|^type (\w{1,64}) = \(|^#+ (\S{1,64})\s*\nDescription:",
    re.MULTILINE,
)
_SCHEMA = re.compile(r'"(?:parameters|input_schema)"\s*:|<parameters>|\btype \w+ = \(|Parameters:')


@dataclass(frozen=True, slots=True)
class Difference:
    """A prompt that differs from the last turn's prompt and reply behind the first `start` tokens,
    by their block hashes `within` the next ones."""

    start: int
    within: int
    known: Sequence[int]
    num_prompt_tokens: int
    first_prompt_tokens: int
    prompt: Sequence[int]

    def described(self, decode: Callable[[list[int]], str]) -> dict[str, Any]:
        """Tell what has changed first, and where, with a few words of both texts as they are.

        For the background thread: takes up to 0.2 s, in pieces of a millisecond, and on the first
        call the seconds in which the tokenizer loads.
        """
        end = self.start + self.within
        num_same = _num_common(
            *(islice(each, self.start, end) for each in (self.known, self.prompt))
        )
        if num_same == self.within:
            return {"change": "attachment"}
        at = self.start + num_same
        return {"diverged_at": at, **_FirstChange(self, at, decode).facts()}


class _FirstChange:
    """The first part of a prompt that is not as it was."""

    def __init__(self, difference: Difference, at: int, decode: Callable[[list[int]], str]) -> None:
        self._decode, it = decode, difference
        self._is_shorter = len(it.prompt) < it.num_prompt_tokens
        self._before = self._text(it.prompt, at - MAX_READ_TOKENS, at)
        self._was = was = self._text(it.known, at, at + MAX_READ_TOKENS)
        self._now = now = self._text(it.prompt, at, at + MAX_READ_TOKENS)
        prompt_left = self._text(it.known, at, min(it.num_prompt_tokens, at + PIECE_TOKENS))
        self._is_first = at < it.first_prompt_tokens
        self._first_chars = len(self._text(it.known, at, it.first_prompt_tokens))
        # a marker may be cut where the prompts differ
        found = _MESSAGE.finditer(self._before + self._now[:SHOWN_CHARS])
        openings = [each for each in found if each.start() < len(self._before)]
        self._head = self._before[openings[-1].end() if openings else -SHOWN_CHARS :]
        self._role, self._number = None, None
        if openings:
            name = "".join(filter(None, openings[-1].groups())).lower()
            is_result = self._head.lstrip().startswith("<tool_response>")
            self._role = "tool" if is_result else _ROLES.get(name, name or None)
            if at <= MAX_READ_TOKENS:  # a system prompt may begin without a marker
                self._number = len(openings) - (openings[0].start() < SHOWN_CHARS)
        begins = self._role == "assistant" and not _MESSAGE.search(prompt_left)
        num_rewritten = PIECE_TOKENS if begins else MAX_REWRITTEN_TOKENS
        self._is_reply = it.num_prompt_tokens - at <= num_rewritten
        self._messages = [self._head + _MESSAGE.split(text, 1)[0] for text in (was, now)]
        self._goes_on = _found(was, now)
        gone, came = self._goes_on or (len(was), len(now))
        self._gone, self._came = was[:gone], now[:came]

    def _text(self, tokens: Sequence[int], start: int, end: int) -> str:
        texts, end = [], min(end, len(tokens))
        for first in range(max(0, start), end, PIECE_TOKENS):
            texts.append(self._decode([*islice(tokens, first, min(first + PIECE_TOKENS, end))]))
            time.sleep(0)  # lets other threads run
        return "".join(texts)

    def facts(self) -> dict[str, Any]:
        kind, change, *tools = self._named()
        was, now = (self._before[-400:] + each[:400] for each in (self._was, self._now))
        start = _num_common(was, now)
        word = max(was.rfind(" ", 0, start), was.rfind("\n", 0, start)) + 1
        return {
            **{"kind": kind, "change": change if was or now else None, "tools": tools},
            **{"role": self._role, "message": self._number},
            "text_before": was[max(0, word - SHOWN_CHARS) : word],
            "text_was": was[word : word + SHOWN_CHARS],
            "text_now": now[word : word + SHOWN_CHARS],
        }

    def _named(self) -> tuple[str | None, ...]:
        """Where the change is, what it is, and what became of which tools."""
        kind = "start" if self._is_first or self._number == 0 else "history"
        kind = "reply" if self._is_reply else kind
        thought = self._change_of_thought()
        if thought is not None:
            return kind, thought
        if self._is_reply:
            is_repeated = self._goes_on and self._role in (None, "assistant")
            return kind, self._change_of_text() if is_repeated else "replaced"
        if self._goes_on is None:
            if self._is_shorter and self._role in (None, "user"):
                return "compacted", "compacted" if self._role else None
            return kind, "branched"
        place, tools = self._change_of_place(*self._goes_on), self._change_of_tools()
        if place is not None and (place != "reordered" or not tools):
            return kind, place
        if tools:
            return kind, *tools
        if len(_MESSAGE.findall(self._gone)) > 1 and len(self._gone) > len(self._came):
            return "compacted", "compacted"
        return kind, self._change_of_text()

    def _change_of_text(self) -> str:
        start = _num_common(self._gone, self._came)
        gone, came = self._gone[start:], self._came[start:]
        if not gone or not came:
            return "removed" if gone else "inserted" if came else "retokenized"
        if sorted(gone.split()) == sorted(came.split()):
            return "reordered"
        return "edited" if max(len(gone), len(came)) <= SHOWN_CHARS else "replaced"

    def _change_of_thought(self) -> str | None:
        """What became of the thought in a message, or reply, whose rest is as it was."""
        (thought, rest), (repeated, rest_now) = map(_thought_and_rest, self._messages)
        # gpt-oss thinks in a message before
        is_same = rest[:SHOWN_CHARS] == rest_now[:SHOWN_CHARS] if rest else "<|chan" in rest_now
        if repeated or self._role not in (None, "assistant") or not (is_same or self._is_reply):
            return None
        is_empty = not thought and (thought is None) != (repeated is None)
        return "thinking" if thought else "empty_thinking" if is_empty else None

    def _change_of_place(self, was: int, to: int) -> str | None:
        """Whether the text that was here, and the text that is, both stand elsewhere as well."""
        now, origin = _found(self._now, self._was) or (to, was)
        if now >= to or was >= origin:
            return None
        texts = self._was[was:origin], self._now[now:to]
        is_near = self._role is not None or max(to, origin) <= self._first_chars
        if is_near and not any(map(_MESSAGE.search, texts)):
            return "reordered"
        # messages keep their order: what moved is the text without any
        moved = min(texts, key=lambda text: len(_MESSAGE.findall(text)))
        return "tools_moved" if _SCHEMA.search(moved) else "moved"

    def _change_of_tools(self) -> tuple[str, ...]:
        """What became of the list of tools, if the first difference lies in it."""
        was, now = map(_names_in, self._messages)
        within = _names_in(self._head)
        is_list = within or _TOOL.search(self._gone + self._came)
        if not is_list or self._role in ("assistant", "tool"):
            return ()
        changes = [f"{name} left out" for name in was if name not in now]
        changes += [f"{name} added" for name in now if name not in was]
        if not changes and was != now:
            return ("reordered",)
        if not changes and within and _SCHEMA.search(self._messages[0], len(self._head)):
            changes = [f"{within[-1]} described in another way"]
        return ("tools", *changes) if changes else ()


def _found(one: str, other: str) -> tuple[int, int] | None:
    """The first place of a text from which on it stands in another, once in both, and where."""
    at = 0
    while at + PROBE_CHARS // 2 <= len(one):
        probe = one[at : at + PROBE_CHARS]
        to = other.find(probe)
        if to >= 0 and one.count(probe) == other.count(probe) == 1:
            back = _num_common(reversed(one[:at]), reversed(other[:to]))
            return at - back, to - back
        at += max(8, at // 64)
    return None


def _names_in(text: str) -> list[str]:
    """Names of tools in the order of their definitions."""
    return ["".join(groups) for groups in _TOOL.findall(text)] if _SCHEMA.search(text) else []


def _thought_and_rest(message: str) -> tuple[str | None, str]:
    """The thought of a message, empty if its marks have nothing between them, None without marks;
    and the text behind it."""
    marks = list(_THOUGHT.finditer(message))
    if not marks:
        return None, message.strip()
    start = 0 if marks[0].lastindex else marks[0].end()
    end = next((mark for mark in marks if mark.lastindex), None)
    thought = message[start : end.start() if end else None]
    return thought.strip("<|\uff5c> \n"), message[end.end() :].strip() if end else ""


def _num_common(one: Iterable[object], other: Iterable[object]) -> int:
    """Items before the first that differs."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in same)
