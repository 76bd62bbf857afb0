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
        "the start of the prompt has changed: the system prompt, the tools or the first message",
        "put dates, counters, ids and other state into the last message; send the same tools",
    ),
    "history": (
        "an earlier message has changed, was left out or put in, or is written in another way",
        "only append to the history; put changing state into the last message",
    ),
}
"""Why, and what to do about it, by the place alone, the field `kind`."""

_CHANGES: Mapping[str, tuple[str, str | None]] = {
    "inserted": ("text was added {place}; the rest is as before", None),
    "removed": ("text was left out {place}; the rest is as before", None),
    "edited": ("a few words are others {place}, such as a date or a counter", None),
    "replaced": ("other text stands {place}", None),
    "reordered": (
        "the same words stand in another order {place}: a list of tools or of files is not sorted",
        "send tools, and lists of files, in the same order each time",
    ),
    "moved": ("text that was sent before has moved; the first difference is {place}", None),
    "retokenized": ("the same text stands {place}, in other tokens", None),
    "tools": (
        "the list of tools has changed {place}: {tools}",
        "send the same tools in every turn; `tool_choice` says which of them may be called",
    ),
    "tools_moved": (
        "the list of tools has moved to another message, by the chat template or by the client",
        "use a chat template that writes the tools at the start, and keeps them there",
    ),
    "thinking": (
        "thinking was stripped {place}: by the client or, often at a new question, the template",
        "send reasoning back, to a chat template that keeps it (Qwen3.6: preserve_thinking; "
        "Nemotron 3: truncate_history_thinking=false, in chat_template_kwargs); or accept it",
    ),
    "empty_thinking": (
        "an empty block of thinking stands {place} in one of both prompts",
        "use a chat template that writes it before a new reply and in the history, or in neither",
    ),
    "compacted": ("messages were left out or summed up, the first of them {place}", None),
    "branched": (
        "other text stands {place}: another conversation or step, or a history written again",
        "give conversations, sub-agents and side requests ids of their own; else only append",
    ),
    "attachment": ("the tokens are the same, but not an image or other attachment", None),
}
"""The same by what became of the text there, the field `change`, known only with `show_prompts`;
None: the advice is that of the place."""

_CUT = (
    "the agent cuts text out of what it has sent, such as an attachment or a note, and all {rest} "
    "tokens behind the cut are computed again: cut seldom and much at a time, or leave it there"
)
_STATE = "put dates, counters, ids and other state into the last message"
_TRIMMED = (
    "the agent trims earlier tool results, and each time all {rest} tokens behind the first of "
    "them are computed again: trim seldom and much at a time, or cut results when they are new"
)
_IN_MESSAGE: Mapping[tuple[str, str | None], str] = {
    **{("removed", role): _CUT for role in ("system", "user", "assistant", None)},
    **{(change, "tool"): _TRIMMED for change in ("removed", "replaced", "compacted")},
    **{
        (change, role): _STATE
        for change in ("edited", "inserted", "replaced")
        for role in ("system", "user")
    },
    **{
        (change, "tool"): "send earlier tool results as they were sent at first; " + _STATE
        for change in ("edited", "inserted")
    },
    ("reordered", "tool"): "send the results of parallel calls in the same order each time",
}
"""The advice by what became of the text and in whose message, but for the last reply."""


@dataclass(slots=True)
class Miss:
    """Why a turn computed tokens again that were expected in the cache."""

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
    why, advice = _KINDS[miss["kind"]]
    change = _CHANGES.get(miss.get("change") or "")
    if change is not None:
        why = change[0].format(place=_place(miss), tools=", ".join(miss.get("tools") or ()))
        of_message = None
        if miss["kind"] != "reply":
            of_message = _IN_MESSAGE.get((miss["change"], miss.get("role")))
        advice = of_message or change[1] or advice
        advice = advice.format(rest=f"{miss['of_tokens'] - miss['diverged_at']:,}")
    return f"diverged at token {miss['diverged_at']:,} of {miss['of_tokens']:,}: {why}", advice


def _place(miss: Mapping[str, Any]) -> str:
    if miss["kind"] == "reply":
        return "in the last reply"
    number, role = miss.get("message"), miss.get("role")
    if role == "system":
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
    if not miss.get("ttl_s"):
        return (
            f"not pinned, because a pin was not worth it{took}{guess}",
            "nothing, if the tool is slow; otherwise report tools with job.tool(), so that the "
            "server learns how long they take",
        )
    return (
        f"TTL of {miss['ttl_s']:.1f} s over{took}{guess}",
        "nothing, if that tool is seldom that slow; otherwise report tools with job.tool(), so "
        "that the server learns, or raise max_ttl_s",
    )


def _released(miss: Mapping[str, Any]) -> tuple[str, str]:
    what = "declared its last step" if miss.get("ended_by") == "last_step" else "was released"
    return (
        f"released early: the job {what} {miss.get('evicted_ago_s', 0.0):.1f} s before this turn",
        "keep the session open until the last turn, and let one job be one session",
    )


def _reset(miss: Mapping[str, Any]) -> tuple[str, str]:
    return (
        f"the prefix cache was reset {miss.get('evicted_ago_s', 0.0):.1f} s before the turn",
        "nothing; something called vLLM's reset_prefix_cache",
    )


def _other(miss: Mapping[str, Any]) -> tuple[str, str]:
    why = {
        "aborted": "a turn of the job was aborted, and its blocks were used for something else",
        "lease": "the job had been idle for longer than job_lease_s and was forgotten",
    }.get(
        miss.get("ended_by") or "",
        "the blocks were pinned and yet not used, as for a request with prompt_logprobs",
    )
    return why, "compare the events of the job: agentkv record URL --job JOB"


_REASONS: Mapping[str, Callable[[Mapping[str, Any]], tuple[str, str]]] = {
    "diverged": _diverged,
    "ttl": _ttl,
    "released": _released,
    "reset": _reset,
}
