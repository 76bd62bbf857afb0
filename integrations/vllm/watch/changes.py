"""Names what changed first between two prompts of a job, by what became of which message.

Looks at messages alone: which were put in, left out, moved or rewritten, and whose they are. Takes
the text of a prompt, or messages that a log has; without tokens, a server or a tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Any, NamedTuple

SHOWN_CHARS = 60
"""An edit has no more characters than this."""
PROBE_CHARS = 48
"""Characters that stand once in both texts where the text goes on; half of them at the end."""
MAX_MESSAGES = 500
"""Messages aligned behind the first that differs: the aligner may take their product."""

_OPENING = re.compile(
    r"<[|\uff5c]?(?:im_start|start_header_id|header_start|start|start_of_turn|turn)[|\uff5c]?>"
    r"(?:\s*(system|developer|user|assistant|model|tool|observation|ipython|functions))?"
    r"|<[|\uff5c](?:im_)?(system|user|assistant|observation|tool)(?:_\w+)?[|\uff5c]>"
    r"|<(tool_response)>|<\uff5c(tool)\u2581output\u2581begin\uff5c>"
    r"|\[(/?INST|SYSTEM_PROMPT|TOOL_RESULTS|AVAILABLE_TOOLS)\]",
    re.IGNORECASE,
)
"""How a message begins: ChatML, Llama, gpt-oss, Gemma; GLM, Phi, DeepSeek, Kimi; Mistral."""
ROLES = {
    **{"model": "assistant", "/inst": "assistant", "inst": "user", "developer": "system"},
    **{"system_prompt": "system", "available_tools": "system", "observation": "tool"},
    **{"tool_results": "tool", "functions": "tool", "ipython": "tool", "tool_response": "tool"},
}
_CLOSING = re.compile(r"(?:<[^<>\n]{1,40}>|\[/\w+\]|\s)*\Z")
_OPEN_TAG = re.compile(r"<[^<>\n]{0,40}\Z")
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
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_CLOCK = re.compile(
    r"\d:\d\d|\d{4}-\d|\d[./]\d{1,2}[./]\d|\d ?[ap]m\b|(?:mon|tues|wednes|thurs|fri|satur|sun)day"
    rf"|\d(?:st|nd|rd|th)?\.? {_MONTH}\b|\b{_MONTH}\.? \d",
    re.IGNORECASE,
)
_WHO = re.compile(
    r"\b(?:you are|you're|i am)\b"
    r"|(?:agent|worker|role|persona|identity|session|instance|thread|name)(?:\b|[_\d])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Message:
    """Holds a message as the model reads it; role None where the text does not tell."""

    role: str | None
    text: str

    @property
    def key(self) -> tuple[str | None, str]:
        """Return what is equal for the same message in another place, or without its thought."""
        text = _thought_and_rest(self.text)[1] if self.role == "assistant" else self.text
        return self.role, _CLOSING.sub("", text).strip()


class Change(NamedTuple):
    """Says what became of the first message that is not as it was, and why if its form tells."""

    change: str | None
    cause: str | None = None
    tools: Sequence[str] = ()


def messages_in(text: str) -> list[Message]:
    """Return the messages of a prompt, or of its end; before the first mark there is no role."""
    openings = list(_OPENING.finditer(text))
    found = [Message(None, text[: openings[0].start()] if openings else text)]
    ends = [opening.start() for opening in openings[1:]]
    for opening, end in zip(openings, [*ends, len(text)], strict=False):
        name = "".join(filter(None, opening.groups())).lower()
        role = ROLES.get(name, name or None)
        if role == "tool" and found[-1].role == "user" and not found[-1].text.strip():
            found.pop()  # Qwen writes results into a user's message
        found.append(Message(role, text[opening.end() : end]))
    if not found[0].key[1] and len(found) > 1:
        del found[0]
    return found


def change_between(
    was: Sequence[Message], now: Sequence[Message], reply: int, *, is_shorter: bool
) -> dict[str, Any]:
    """Return the facts of the first difference between a context and the prompt after it.

    `reply` counts the messages in `was` before the last reply; the prompt `is_shorter` or not.
    """
    at = num_common(was, now)
    change = Change("retokenized")
    if at < max(len(was), len(now)):
        change = _first_change(was, now, at, reply, is_shorter)
    at = min(at, len(was) - 1)
    kind = "start" if at == 0 and was[0].role is not None else "history"
    if change.change in ("compacted", None):
        kind = "compacted"
    is_new = change.change in ("inserted", "branched") and at < len(now)
    return {
        "kind": "reply" if at >= reply else kind,
        "change": change.change,
        "cause": change.cause,
        "tools": [*change.tools],
        "role": (now if is_new else was)[at].role,
        "message": None if was[0].role is None else at,
    }


def _first_change(
    was: Sequence[Message], now: Sequence[Message], at: int, reply: int, is_shorter: bool
) -> Change:
    before, after = was[at:], now[at:]
    one, other = (each[0] if each else Message(None, "") for each in (before, after))
    thought = _change_of_thought(one, other, is_reply=at >= reply)
    if thought == "thinking":
        asks = any(each.role == "user" for each in now[reply + 1 :])
        return Change(thought, "new_question" if asks else "not_sent_back")
    if thought is not None:
        return Change(thought)
    edit = _Edit.of(one.text, other.text, has_role=one.role is not None)
    if at >= reply:
        is_repeated = edit.goes_on and other.role in (None, "assistant")
        return Change(edit.change if is_repeated else "replaced")
    if _is_order_of_results(before, after):
        return Change("reordered", "parallel_results")
    gone, came = _first_gap(before, after)
    is_rewritten = (gone and came and edit.goes_on) or (one.role and gone == came < 2)
    if is_rewritten and one.role == other.role:
        return _change_within(edit, one.role, is_before_reply=at + 1 == reply)
    if not gone or not came:
        others = after if gone else before
        return _change_of_messages(before[:gone], after[:came], others, at + gone == reply)
    if gone < len(before) and came < len(after):
        return Change("compacted" if gone > came else "replaced")
    if is_shorter and other.role in (None, "user"):
        return Change("compacted" if other.role else None)
    return Change("branched")


def _is_order_of_results(before: Sequence[Message], after: Sequence[Message]) -> bool:
    """Tell whether results, perhaps written as a user's, are the same in another order."""
    one, other = (
        [each.key for each in takewhile(lambda each: each.role in ("tool", "user"), messages)]
        for messages in (before, after)
    )
    return len(one) > 1 < len(other) and one[0] in other[1:] and other[0] in one[1:]


def _first_gap(before: Sequence[Message], after: Sequence[Message]) -> tuple[int, int]:
    """Count messages gone and come before both prompts go on alike; all if they never do."""
    one, other = ([each.key for each in part[:MAX_MESSAGES]] for part in (before, after))
    blocks = SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
    for gone, come, size in blocks[:-1]:
        num_chars = sum(len(text) for _, text in one[gone : gone + size])
        if num_chars >= PROBE_CHARS // 2 or (num_chars and gone + come <= 2):
            return gone, come
    return len(before), len(after)


def _change_of_messages(
    gone: Sequence[Message], came: Sequence[Message], others: Sequence[Message], is_end: bool
) -> Change:
    """Name the change where messages were left out or put in.

    `others` follow in the other prompt; `is_end`: those gone were its last before the reply."""
    cause: str | None = None
    if gone and is_end and all(each.role != "assistant" for each in gone):
        cause = "note"
    names = [name for each in gone or came for name in _names_in(each.text)]
    keys = {each.key for each in others}
    if all(each.key in keys for each in gone or came):
        return Change("tools_moved") if names else Change("moved", cause)
    if names:
        how = "left out" if gone else "added"
        return Change("tools", tools=[f"{name} {how}" for name in names])
    if not gone:
        return Change("inserted", "state" if _CLOCK.search(came[0].text) else None)
    return Change("removed" if cause or len(gone) == 1 else "compacted", cause)


class _Edit(NamedTuple):
    """Holds the first place where two texts differ: what was cut out, and what stands there."""

    before: str
    gone: str
    came: str
    rest: str
    goes_on: bool
    """Some words around it are the same in both."""
    turns: bool
    """What came stood further back, and what is gone stands there now."""

    @classmethod
    def of(cls, one: str, other: str, *, has_role: bool) -> _Edit:
        start = num_common(one, other)
        start = len(_OPEN_TAG.sub("", one[:start]))
        was, now = one[start:], other[start:]
        forth, back = _found(was, now), _found(now, was)
        turns = bool(forth and back and back[0] < forth[1] and forth[0] < back[1])
        num_same = num_common(reversed(was), reversed(now))
        gone, came = forth or (len(was) - num_same, len(now) - num_same)
        same = _CLOSING.sub("", one[:start]) + _CLOSING.sub("", was[gone:])
        least = min(PROBE_CHARS // 2, max(1, min(len(one), len(other)) // 2))
        goes_on = forth is not None or (has_role and len(same.strip()) >= least)
        return cls(one[:start], was[:gone], now[:came], was[gone:], goes_on, turns)

    @property
    def change(self) -> str:
        if self.turns:
            return "reordered"
        if not self.gone or not self.came:
            return "removed" if self.gone else "inserted" if self.came else "retokenized"
        if sorted(self.gone.split()) == sorted(self.came.split()):
            return "reordered"
        return "edited" if max(len(self.gone), len(self.came)) <= SHOWN_CHARS else "replaced"

    def cause(self, role: str | None) -> str | None:
        """Name a state such as a clock, or who the agent is, by the sentence that differs."""
        if self.change in ("removed", "reordered"):
            return None
        head = self.before[max(self.before.rfind(mark) for mark in "\n.!?>") + 1 :]
        texts = self.gone[:SHOWN_CHARS], self.came[:SHOWN_CHARS]
        if any(_CLOCK.search(head + text + self.rest.split(" ")[0]) for text in texts):
            return "state"
        is_number = not any(re.search(r"[^\W\d_]", text) for text in texts)
        words = head[-PROBE_CHARS // 2 :] if is_number else " ".join((head, *texts))
        is_other = self.change == "replaced" and role == "system" and not self.before.strip()
        if role in ("system", "user", None) and (is_other or _WHO.search(words)):
            return "identity"
        return "state" if is_number and re.search(r"\d", "".join(texts)) else None


def _change_within(edit: _Edit, role: str | None, *, is_before_reply: bool) -> Change:
    """Name the change where a message stands in both prompts, with another text."""
    tools = None if role in ("assistant", "tool") else _change_of_tools(edit)
    if tools is not None:
        return tools
    change = edit.change
    is_set_off = edit.gone.lstrip(" ")[:1] in ("\n", "<") and not _CLOSING.sub("", edit.rest)
    if is_before_reply and change == "removed" and (is_set_off or role != "tool"):
        return Change(change, "note")
    return Change(change, edit.cause(role))


def _change_of_tools(edit: _Edit) -> Change | None:
    """Name what became of the list of tools, if the first difference lies in it."""
    within = _names_in(edit.before + edit.gone + edit.rest)[: len(_TOOL.findall(edit.before))]
    if not within and not _TOOL.search(edit.gone + edit.came):
        return None
    was, now = (_names_in(edit.before + text + edit.rest) for text in (edit.gone, edit.came))
    changes = [f"{name} left out" for name in was if name not in now]
    changes += [f"{name} added" for name in now if name not in was]
    if not changes and was != now:
        return Change("reordered")
    if not changes and within and _SCHEMA.search(edit.gone + edit.rest):
        changes = [f"{within[-1]} described in another way"]
    return Change("tools", tools=changes) if changes else None


def _change_of_thought(one: Message, other: Message, *, is_reply: bool) -> str | None:
    """Name what became of the thought in a message whose rest is as it was, or in the reply."""
    (thought, rest), (repeated, rest_now) = map(_thought_and_rest, (one.text, other.text))
    # gpt-oss thinks in a message before
    is_same = rest[:SHOWN_CHARS] == rest_now[:SHOWN_CHARS] if rest else "<|chan" in rest_now
    if repeated or one.role not in (None, "assistant") or not (is_same or is_reply):
        return None
    is_empty = not thought and (thought is None) != (repeated is None)
    return "thinking" if thought else "empty_thinking" if is_empty else None


def _thought_and_rest(message: str) -> tuple[str | None, str]:
    """Return the thought of a message, None without marks of one, and the text behind it."""
    marks = list(_THOUGHT.finditer(message))
    if not marks:
        return None, message.strip()
    start = 0 if marks[0].lastindex else marks[0].end()
    end = next((mark for mark in marks if mark.lastindex), None)
    thought = message[start : end.start() if end else None]
    return thought.strip("<|\uff5c> \n"), message[end.end() :].strip() if end else ""


def _names_in(text: str) -> list[str]:
    """Return names of tools in the order of their definitions."""
    return ["".join(groups) for groups in _TOOL.findall(text)] if _SCHEMA.search(text) else []


def _found(one: str, other: str) -> tuple[int, int] | None:
    """Find the first place of a text from which on it stands in another, once in both."""
    at = 0
    while at + PROBE_CHARS // 2 <= len(one):
        probe = one[at : at + PROBE_CHARS]
        to = other.find(probe)
        if to >= 0 and one.count(probe) == other.count(probe) == 1:
            back = num_common(reversed(one[:at]), reversed(other[:to]))
            return at - back, to - back
        at += max(8, at // 64)
    return None


def words_that_differ(before: str, was: str, now: str) -> dict[str, str]:
    """Return a few words before the first difference, and of both texts behind it."""
    was, now = (before[-400:] + each[:400] for each in (was, now))
    start = num_common(was, now)
    word = max(was.rfind(" ", 0, start), was.rfind("\n", 0, start)) + 1
    return {
        "text_before": was[max(0, word - SHOWN_CHARS) : word],
        "text_was": was[word : word + SHOWN_CHARS],
        "text_now": now[word : word + SHOWN_CHARS],
    }


def num_common(one: Iterable[object], other: Iterable[object]) -> int:
    """Count the items before the first that differs."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in same)
