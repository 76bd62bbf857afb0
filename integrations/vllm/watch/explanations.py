"""Says in a sentence why a turn missed, and what to do about it.

`/v1/agentkv/explain` and `agentkv explain` show both. Each sentence is made of the facts of a miss
as MissWatcher finds them, so that it claims nothing that the engine does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

Divergence = Literal[
    "cache_keys",  # another LoRA or cache_salt
    "reply",  # within the last turn's reply
    "compacted",  # the prompt is shorter than that of the turn before
    "start",  # within the prompt of the job's first turn
    "history",  # elsewhere
]
"""Where a prompt left what the turn before had left, the field `kind`."""

Change = Literal[
    "edited",  # some tokens are others, and the text goes on as before
    "reordered",  # nearly the same tokens in another order
    "thinking",  # the reply had thinking, the prompt repeats it without
]
"""What became of the text there, the field `change`; known only with `show_prompts`."""

_KINDS: Mapping[str, tuple[str, str]] = {
    "cache_keys": (
        "the prompt has another LoRA or cache_salt than the turn before, and shares no KV with it",
        "send all turns of a job with the same model name and the same cache_salt",
    ),
    "reply": (
        "the last reply stands in this prompt in another form: its thinking was stripped, or the "
        "template writes its text or tool calls differently",
        "send the reply back as it came, or use a chat template that keeps it (for thinking "
        "models: one that keeps past reasoning); what is lost is the reply alone",
    ),
    "compacted": (
        "the prompt is shorter than the one before: the agent compacted or cut its history",
        "compact seldom and much at a time, and keep the start of the prompt as it was",
    ),
    "start": (
        "the start of the prompt has changed: the system prompt, the tools or the first message",
        "keep dates, ids, file lists and other state out of the start: put them into the last "
        "message, and keep the tools in one order",
    ),
    "history": (
        "an earlier message has changed, was left out or was put in",
        "only append to the history; put changing state into the last message",
    ),
}
_CHANGES: Mapping[str, tuple[str, str]] = {
    "edited": (
        "a few words near the start of the prompt have changed, such as a date",
        "keep dates, ids and other state out of the start: put them into the last message",
    ),
    "reordered": (
        "the start of the prompt has the same words in another order: a list of tools or of files "
        "is not sorted",
        "send tools, and lists of files, in the same order each time",
    ),
    "thinking": (
        "the last reply's thinking was stripped by the chat template",
        "use a chat template that keeps past reasoning, or accept it: what is lost is the last "
        "reply alone",
    ),
}


def explanation(miss: Mapping[str, Any], taker: str | None = None) -> tuple[str, str]:
    """Return why a turn missed, and what to do about it, from the facts of a miss.

    taker: who got its memory, in words; None if that is not known.
    """
    if miss["reason"] == "pressure":
        return _pressure(miss, taker)
    return _REASONS.get(miss["reason"], _other)(miss)


def _diverged(miss: Mapping[str, Any]) -> tuple[str, str]:
    why, advice = _CHANGES.get(miss.get("change") or "") or _KINDS[miss["kind"]]
    at = f"diverged at token {miss['diverged_at']:,} of {miss['of_tokens']:,}"
    return f"{at}: {why}", advice


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
            f"not held, because holding was not worth it{took}{guess}",
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
        "the blocks were held and yet not used, as for a request with prompt_logprobs",
    )
    return why, "compare the events of the job: agentkv record URL --job JOB"


_REASONS: Mapping[str, Callable[[Mapping[str, Any]], tuple[str, str]]] = {
    "diverged": _diverged,
    "ttl": _ttl,
    "released": _released,
    "reset": _reset,
}
