"""Plays a conversation of several tool turns through a chat template, and names what it changes.

A turn is served from the cache as far as its prompt repeats the turn before and that turn's
reply. Knows a template only as a function that renders; nothing is generated.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from .check import Check, ok, warn

Message = dict[str, Any]
Settings = dict[str, Any]
"""Arguments of the template: `chat_template_kwargs` of a request."""

SWITCHES = ("preserve_thinking", "clear_thinking", "truncate_history_thinking")
"""What templates call the switch for earlier thinking: Qwen 3.6, GLM-4.7, Nemotron 3."""
MODES = [{name: value} for name in ("enable_thinking", "thinking") for value in (False, True)]
LIMIT_S = 30
"""For all renderings of a template together."""
MIN_LOST = 16
"""vLLM keeps whole blocks, by default of 16 tokens: less costs nothing."""
LEFT_OUT = "the template leaves out what the user wrote"
PATCH = "no setting changes that: give vLLM a patched template with --chat-template FILE"
GPT_OSS = "vLLM renders gpt-oss without its template, and drops thinking when the user writes again"
"""Source: `auto_drop_analysis_messages` in vLLM 0.32's openai/parser/harmony_utils.py."""
_OPENS_A_THOUGHT = re.compile(r"[<\[|](?!/)\w*(think|thought|reason)\w*[|>\]]+\s*$", re.I)
_DAYS = ("%Y-%m-%d", "%Y/%m/%d", "%d %b %Y", "%d %B %Y", "%B %d, %Y", "%b %d, %Y")


class NotRenderedError(Exception):
    """The template, or its server, gave no prompt; the message says why."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered conversation: its text, and what is counted, token ids or characters."""

    text: str
    units: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Template:
    """A chat template. `render` takes messages, settings, and whether a reply is to follow."""

    render: Callable[[Sequence[Message], Settings, bool], Rendered]
    switches: Sequence[str] = SWITCHES
    """Names of settings that it may read."""
    unit: str = "tokens"


@dataclass(frozen=True, slots=True)
class Continuation:
    """A turn's prompt, the same with its reply, and the prompt of the turn after it."""

    prompt: Rendered
    replied: Rendered
    after: Rendered
    reply: Message
    is_before_user: bool
    """The turn after it begins with the user, not with a tool's result."""

    @property
    def forgets_thought(self) -> bool:
        """The prompt lets the model think, and the template writes nothing of it."""
        opens = _OPENS_A_THOUGHT.search(self.prompt.text) is not None
        return opens and self.reply.get("reasoning", "") not in self.replied.text

    @property
    def text(self) -> str:
        """The prompt, and behind it the reply as the template writes it."""
        start = _common(self.prompt.text, self.replied.text)
        return self.prompt.text + self.replied.text[start:]

    @property
    def num_lost(self) -> int:
        """Units of the next prompt that repeat this turn, and yet are computed again."""
        start = _common(self.prompt.units, self.replied.units)
        computed = [*self.prompt.units, *self.replied.units[start:]]
        kept = start if self.forgets_thought else _common(computed, self.after.units)
        return min(len(computed), len(self.after.units)) - kept


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    differs = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differs, min(len(one), len(other)))


_PROBE = json.loads(resources.files(__package__).joinpath("conversation.json").read_text("utf-8"))
"""Two tasks, of two tool calls and of one, and the user's message after each."""
TOOLS: list[dict[str, Any]] = _PROBE["tools"]
_MESSAGES: list[Message] = _PROBE["messages"]
_CONTENTS = [message["content"] for message in _MESSAGES if message["content"]]
_THOUGHTS = [message["reasoning"] for message in _MESSAGES if "reasoning" in message]
_RESULTS = [message["content"] for message in _MESSAGES if message["role"] == "tool"]
_PARTS = {
    "system prompt": ("the system prompt", _CONTENTS[:1]),
    "tools": ("the tools", [TOOLS[0]["function"]["description"]]),
    "thinking": ("the thinking of earlier replies", _THOUGHTS),
    "tool results": ("earlier tool results", _RESULTS),
}
"""What a template may drop or move."""


def _without_thoughts(messages: Sequence[Message]) -> list[Message]:
    # the field has two names: vLLM's /tokenize reads the newer, many templates the older
    drops = ("reasoning", "reasoning_content")
    return [{name: m[name] for name in m if name not in drops} for m in messages]


def is_rendered(text: str) -> bool:
    """Whether a rendered text has the contents of the messages."""
    return _CONTENTS[1] in text


class _Play:
    """The conversation as a template renders it with some settings."""

    def __init__(self, template: Template, settings: Settings, *, thinks: bool = True) -> None:
        self.template, self.settings, self.thinks = template, settings, thinks
        self.messages = messages = _MESSAGES if thinks else _without_thoughts(_MESSAGES)
        prompts = [template.render(messages[:end], settings, True) for end in range(2, 13, 2)]
        replied = [template.render(messages[:end], settings, False) for end in range(3, 13, 2)]
        users = [message["role"] == "user" for message in messages[3::2]]
        turns = zip(prompts, replied, prompts[1:], messages[2::2], users, strict=False)
        self.turns = [Continuation(*turn) for turn in turns]
        if "<|start|>assistant" in prompts[0].text:
            raise NotRenderedError(GPT_OSS)
        self.start = prompts[0].text, replied[0].text
        """The first prompt and its reply: what changes these changes the model's work."""

    @classmethod
    def of(cls, template: Template, settings: Settings) -> _Play:
        """Let replies think if the template lets the model think."""
        play = cls(template, settings)
        prompt, replied = play.start
        writes = replied.startswith(prompt) and _THOUGHTS[0] in replied
        if writes or play.turns[0].forgets_thought:
            return play
        return cls(template, settings, thinks=False)

    def causes(self) -> dict[str, list[tuple[Continuation, str]]]:
        """What the template does, by name: to which turns, and in words."""
        causes: dict[str, list[tuple[Continuation, str]]] = {}
        for turn in self.turns:
            for name, does in _causes(turn):
                causes.setdefault(name, []).append((turn, does))
        return causes

    def checks(self) -> Iterator[Check]:
        """Yield a warning for each thing that costs something, and what an agent must send."""
        causes = self.causes()
        for name, hits in causes.items():
            turn, does = max(hits, key=lambda hit: hit[0].num_lost)
            is_rare = all(hit.is_before_user for hit, _ in hits)
            when = "when the user writes again" if is_rare else "each turn"
            seen = f"{does} {when}{self._cost(turn.num_lost, turn.after)}"
            yield warn(f"chat template: {name}", seen, self._advice(name))
        yield from self._check_date()
        yield from self._check_bare_call()
        if self.thinks and not self.turns[0].forgets_thought:
            after = self._render(_without_thoughts(_MESSAGES[:4]))
            cost = self._cost(replace(self.turns[0], after=after).num_lost, after)
            yield ok("chat template: echo", f"agents must send `reasoning` back: without it{cost}")

    def _render(self, messages: list[Message], **settings: Any) -> Rendered:
        is_prompt = messages[-1]["role"] != "assistant"
        return self.template.render(messages, self.settings | settings, is_prompt)

    def _cost(self, num_lost: int, prompt: Rendered) -> str:
        total, unit = len(prompt.units), self.template.unit
        cost = f": {num_lost} of {total} {unit} ({num_lost / total:.0%}) are computed again"
        return cost + (f", with {json.dumps(self.settings)}" if self.settings else "")

    @cached_property
    def _tried(self) -> list[tuple[Settings, set[str]]]:
        """Settings that leave the first turn as it is, with what the template still does."""
        tried = []
        for name, value in itertools.product(self.template.switches, (True, False)):
            settings = self.settings | {name: value}
            with suppress(NotRenderedError):
                play = _Play(self.template, settings, thinks=self.thinks)
                if play.start == self.start:
                    tried.append((settings, set(play.causes())))
        return tried

    def _advice(self, name: str) -> str:
        mends = (settings for settings, causes in self._tried if name not in causes)
        return next(map(_flag, mends), PATCH)

    def _check_date(self) -> Iterator[Check]:
        """Today's date, give or take a day: the server may be in another time zone."""
        prompt, now = self.turns[0].prompt, datetime.now()
        days = [now + timedelta(days=days) for days in (0, -1, 1)]
        dates = [day.strftime(form) for day in days for form in _DAYS]
        date = next((date for date in dates if date in prompt.text), None)
        if date is None:
            return
        num_lost = round(len(prompt.units) * (1 - prompt.text.find(date) / len(prompt.text)))
        when = "minute" if re.search(r"\b\d\d:\d\d", prompt.text) else "day"
        seen = f"writes the date of each {when}{self._cost(num_lost, prompt)}"
        fixed = {"date_string": "1 January 2026"}
        has_fixed = date not in self._render(_MESSAGES[:2], **fixed).text
        advice = _flag(self.settings | fixed) if has_fixed else PATCH
        yield warn("chat template: date", seen, advice)

    def _check_bare_call(self) -> Iterator[Check]:
        """Whitespace that comes before a call without text, and not before text in its place."""
        turn = self.turns[1]
        reply = {name: turn.reply[name] for name in turn.reply if name != "tool_calls"}
        with_text = self._render([*self.messages[:4], reply | {"content": _CONTENTS[2]}])
        call = turn.replied.text[_common(turn.replied.text, with_text.text) :]
        space = call[: len(call) - len(call.lstrip())]
        if space and "src/amounts.py" in call:
            num_lost = len(turn.replied.units) - _common(turn.replied.units, with_text.units)
            seen = f"writes {space!r} before a call that has no text before it"
            cost = self._cost(num_lost, turn.after)
            yield warn("chat template: whitespace", seen + cost, f"if the model does not: {PATCH}")


def _flag(settings: Settings) -> str:
    flag = f"--default-chat-template-kwargs '{json.dumps(settings)}'"
    return f"{flag} mends it, as do chat_template_kwargs of a request"


def _causes(turn: Continuation) -> Iterator[tuple[str, str]]:
    """Yield what the template does to a turn: its name, and in words."""
    if turn.num_lost < MIN_LOST:
        return
    old, new, prompt = turn.text, turn.after.text, turn.prompt.text
    at, is_named = _common(old, new), False
    for name, (what, parts) in _PARTS.items():
        known = [part for part in parts if part in old]
        is_dropped = any(part not in new for part in known)
        if is_dropped or any(_rank(part, new) > _rank(part, old) for part in known):
            is_named = True
            yield name, f"drops {what}" if is_dropped else f"moves {what} to a later message"
    if turn.forgets_thought:
        yield "thinking", "never writes the thinking of a reply"
    elif is_named:
        return
    elif at == len(old):
        yield "tokens", "lets a reply's first characters fuse with the prompt's last token"
    elif max(prompt.rfind(content) for content in _CONTENTS) < at < len(prompt):
        tag = prompt[prompt.rfind("<", 0, at + 1) :]
        yield "reply", f"writes {_shown(tag)} before a reply, and not in the history"
    elif (end := old.find(new[at : at + 30], at)) > at:
        yield "history", f"drops {_shown(old[at:end])} from earlier replies"
    else:
        yield "history", f"writes {_shown(new[at:])} in place of {_shown(old[at:])}"


def _unchecked(reason: str) -> Check:
    if reason == GPT_OSS:
        return warn("chat template: thinking", reason, "no setting changes that")
    advice = "check it on the server, with --url, or give a --model with a template that renders"
    return warn("chat template", f"not checked: {reason}", advice)


def _rank(part: str, text: str) -> int:
    """The number of messages before this part."""
    before = text[: text.find(part)]
    return sum(content in before for content in _CONTENTS)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def check_folder(path: Path) -> Iterator[Check]:
    """Yield the checks of the template in a model's folder, or in a file; takes a second or two."""
    command = [sys.executable, "-m", f"{__package__}.local_template", str(path)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, errors="replace", check=False
        )
        yield from (Check(**fields) for fields in json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        yield _unchecked(f"no end after {LIMIT_S} s")
    except ValueError:
        yield _unchecked((done.stderr.strip().splitlines() or ["it was ended"])[-1][:300])


def check_template(load: Callable[[], Template]) -> Iterator[Check]:
    """Yield a warning for each thing that the template does to earlier turns, or that all is OK."""
    try:
        template = load()
        usual = _Play.of(template, {})
        found = list(usual.checks())
    except NotRenderedError as error:
        yield _unchecked(str(error))
        return
    starts, names = {usual.start}, {check.name for check in found}
    for settings in MODES:
        with suppress(NotRenderedError):
            play = _Play.of(template, settings)
            if play.start not in starts:
                starts.add(play.start)
                found += [check for check in play.checks() if check.name not in names]
                names |= {check.name for check in found}
    if all(check.status == "OK" for check in found):
        seen = f"{len(usual.turns)} prompts and their replies begin the next prompt"
        yield ok("chat template", seen)
    yield from found
