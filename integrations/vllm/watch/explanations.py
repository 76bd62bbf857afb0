"""Says in a sentence why a turn missed, and what to do about it.

`/v1/agentkv/explain` and `agentkv explain` show both. Each sentence is made of the facts of a miss
as MissWatcher finds them, so that it claims nothing that the engine does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentkv.policies.pins import MissReason
from agentkv.protocol import JobKey

_KINDS: Mapping[str, tuple[str, str]] = {
    "cache_keys": (
        "the prompt has another LoRA or cache_salt than the turn before, and shares no KV with it",
        "send all turns of a job with the same model name and the same cache_salt",
    ),
    "reply": (
        "the last reply has another form now: without thinking, other calls, or another text",
        "send the reply back as it came, to a template that keeps it; only the reply is lost",
    ),
    "compacted": (
        "the prompt is shorter now: the agent cut its history, or the template left text out",
        "compact seldom and much at a time, and keep the start of the prompt as it was",
    ),
    "start": (
        "the start of the prompt has changed: the system prompt, the tools or the first messages",
        "send what was sent before as it was, and new text behind it; show_prompts names the text",
    ),
    "history": (
        "an earlier message has changed, was left out or put in, or is written in another way",
        "only append to the history; show_prompts names the text that differs",
    ),
}
"""Why, and what to do about it, by the place alone, the field `kind`."""

_APPEND = "only append to the history, and send earlier messages as they were sent at first"
_CUT = (
    "the agent cuts text out of what it has sent, and all {rest} tokens behind the cut are "
    "computed again: cut seldom and much at a time, or leave it there"
)
_STATE = "put dates, counters, ids and other state into the last message"
_TRIMMED = (
    "the agent trims earlier tool results, and each time all {rest} tokens behind the first of "
    "them are computed again: trim seldom and much at a time, or cut results when they are new"
)
_REPLY = "send replies back as they came: text, calls and their ids"

_CHANGES: Mapping[str, tuple[str, str]] = {
    "inserted": ("text was added {place}; the rest is as before", _APPEND),
    "removed": ("text was left out {place}; the rest is as before", _CUT),
    "edited": ("a few words are others {place}", _APPEND),
    "replaced": ("other text stands {place}", _APPEND),
    "moved": ("text that was sent before has moved; the first difference is {place}", _APPEND),
    "retokenized": ("the same text stands {place}, in other tokens", _APPEND),
    "reordered": (
        "the same words stand in another order {place}: a list of tools or of files is not sorted",
        "send tools, and lists of files, in the same order each time",
    ),
    "tools": (
        "the list of tools has changed {place}: {tools}",
        "send the same tools in every turn; `tool_choice` says which of them may be called",
    ),
    "tools_moved": (
        "the list of tools has moved to another message, by the chat template or by the client",
        "use a chat template that writes the tools at the start, and keeps them there",
    ),
    "empty_thinking": (
        "an empty block of thinking stands {place} in one of both prompts",
        "use a chat template that writes it before a new reply and in the history, or in neither",
    ),
    "compacted": (
        "messages were left out or summed up, the first of them {place}",
        "compact seldom and much at a time, and keep the start of the prompt as it was",
    ),
    "branched": (
        "other text stands {place}: another conversation or step, or a history written again",
        "give conversations, sub-agents and side requests ids of their own; else only append",
    ),
    "attachment": ("the tokens are the same, but not an image or other attachment", _APPEND),
}
"""The same by what became of the text there, the field `change`, known only with `show_prompts`."""

_CAUSES: Mapping[str, tuple[str, str]] = {
    "identity": (
        "the words that say who the agent is are others {place}, as when a sub-agent is resumed "
        "under another name",
        "resume an agent with the identity it began with, word for word; another agent, or a side "
        "request, needs an id of its own",
    ),
    "new_question": (
        "thinking was stripped {place} at a new question: by the chat template, or the client",
        "use a chat template that keeps it (Qwen3.6: preserve_thinking; "
        "Nemotron 3: truncate_history_thinking=false, in chat_template_kwargs); or accept it",
    ),
    "not_sent_back": (
        "thinking was stripped {place} within a task: a proxy or the client dropped the reasoning, "
        "or the chat template does",
        "send `reasoning` back with each reply, through a proxy that passes it on, to a chat "
        "template that keeps it",
    ),
    "note": (
        "a note that stood {place}, before the last reply, is gone from there",
        "leave notes and reminders where they were sent, and append new ones: the {rest} tokens "
        "behind it are computed again",
    ),
    "parallel_results": (
        "results of parallel calls stand in another order, the first of them {place}",
        "send the results of parallel calls in the same order each time, that of the calls",
    ),
    "state": ("a date, clock or counter has changed {place}", _STATE),
}
"""The same by the field `cause`, where the form of the change tells it."""

_ADVICE: Mapping[tuple[str | None, str], str] = {
    **dict.fromkeys([(it, "tool") for it in ("removed", "replaced", "compacted")], _TRIMMED),
    **dict.fromkeys([(it, "assistant") for it in ("edited", "inserted", "replaced")], _REPLY),
    **dict.fromkeys([(it, "system") for it in ("edited", "inserted", "replaced")], _STATE),
    **dict.fromkeys([(it, "user") for it in ("edited", "inserted", "replaced")], _STATE),
    **dict.fromkeys([(it, "tool") for it in ("edited", "inserted")], f"{_APPEND}, results, too"),
}
"""The advice by the change and whose message it is in, without a cause, but for the last reply."""


@dataclass(slots=True)
class Miss:
    """Says why a turn computed tokens again that were expected in the cache."""

    reason: MissReason
    num_tokens: int
    facts: dict[str, Any]
    taken_by: str | None = None

    def as_dict(self, viewer: str | None) -> dict[str, Any]:
        """Return it as plain data, with the sentences that explain it; `viewer` is the client that
        asks, None sees all jobs."""
        shown = {"reason": self.reason, "tokens": self.num_tokens, **self.facts}
        taker = None
        if self.taken_by is not None:
            key = JobKey.read(self.taken_by)
            if not key:
                shown["taken_by"] = taker = "a request without a job"
            elif viewer is None or key.client == viewer:
                shown["taken_by"], taker = key.own_id, f"job {key.own_id}"
            else:
                shown["taken_by"] = taker = "another client's job"
        why, advice = explanation(shown, taker)
        return {**shown, "why": why, "advice": advice}


def explanation(miss: Mapping[str, Any], taker: str | None = None) -> tuple[str, str]:
    """Return why a turn missed, and what to do about it, from the facts of a miss.

    taker: who got its memory, in words; None if that is not known.
    """
    if miss["reason"] == "pressure":
        return _pressure(miss, taker)
    return _REASONS.get(miss["reason"], _other)(miss)


def _diverged(miss: Mapping[str, Any]) -> tuple[str, str]:
    kind, change, cause = miss["kind"], miss.get("change"), miss.get("cause")
    why, advice = _CAUSES.get(cause or "") or _CHANGES.get(change or "") or _KINDS[kind]
    if kind == "reply" and change not in ("thinking", "empty_thinking"):
        advice = _KINDS["reply"][1]
    elif cause is None:
        advice = _ADVICE.get((change, miss.get("role") or ""), advice)
    why = why.format(place=_place(miss), tools=", ".join(miss.get("tools") or ()))
    advice = advice.format(rest=f"{miss['of_tokens'] - miss['diverged_at']:,}")
    return f"diverged at token {miss['diverged_at']:,} of {miss['of_tokens']:,}: {why}", advice


def _place(miss: Mapping[str, Any]) -> str:
    if miss["kind"] == "reply":
        return "in the last reply"
    number, role = miss.get("message"), miss.get("role")
    if role == "system" and not number:
        return "in the system prompt"
    if number is not None:
        return f"in message {number} ({role})"
    return "near the start of the prompt" if miss["kind"] == "start" else "in the history"


def _pressure(miss: Mapping[str, Any], taker: str | None) -> tuple[str, str]:
    ago_s = miss.get("evicted_ago_s")
    when = f"{ago_s:.1f} s before the turn" if ago_s else "while the turn waited"
    memory = "was short" if taker is None else f"went to {taker}"
    return (
        f"evicted {when}: memory {memory}",
        "run fewer jobs at once, give the cache more memory, or add KV offloading; "
        "`agentkv simulate` says how many jobs fit",
    )


def _ttl(miss: Mapping[str, Any]) -> tuple[str, str]:
    tool = "" if miss.get("tool") is None else f" {miss['tool']}"
    took = "" if miss.get("tool_s") is None else f", the tool{tool} took {miss['tool_s']:.1f} s"
    predicted = miss.get("predicted_s")
    guess = "" if predicted is None else f", predicted {predicted:.1f} s"
    advice = (
        "nothing, if that tool is seldom that slow; otherwise report tools with job.tool(), so "
        "that the server learns how long they take"
    )
    if not miss.get("ttl_s"):
        return f"not pinned, because a pin was not worth it{took}{guess}", advice
    return f"TTL of {miss['ttl_s']:.1f} s over{took}{guess}", f"{advice}, or raise max_ttl_s"


def _other(miss: Mapping[str, Any]) -> tuple[str, str]:
    end = "reset" if miss["reason"] == "reset" else miss.get("ended_by") or ""
    why, advice = _ENDS.get(end) or _NOT_USED
    return why.format(ago=f"{miss.get('evicted_ago_s', 0.0):.1f} s before this turn"), advice


_COMPARE = "compare the events of the job: agentkv record URL --job JOB"
_KEEP_OPEN = "keep the session open until the last turn, and let one job be one session"
_NOT_USED = (
    "the blocks were pinned and yet not used, as for a request with prompt_logprobs",
    _COMPARE,
)
_ENDS: Mapping[str, tuple[str, str]] = {
    "last_step": ("released early: the job declared its last step {ago}", _KEEP_OPEN),
    "released": ("released early: the job was released {ago}", _KEEP_OPEN),
    "reset": (
        "the prefix cache was reset {ago}",
        "nothing; something called vLLM's reset_prefix_cache",
    ),
    "aborted": (
        "a turn of the job was aborted, and its blocks were used for something else",
        _COMPARE,
    ),
    "lease": ("the job had been idle for longer than job_lease_s and was forgotten", _COMPARE),
}
_REASONS: Mapping[str, Callable[[Mapping[str, Any]], tuple[str, str]]] = {
    "diverged": _diverged,
    "ttl": _ttl,
}
