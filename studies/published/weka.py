"""`python studies/published/weka.py TRACE.json ... > TURNS.jsonl`: AgentX sessions, a line a turn.

Equal names of blocks are equal tokens, so where a prompt left the one before it is known. Source:
kv-cache-tester's docs/trace_replay_tester.md and aiperf's docs/tutorials/weka-trace.md (2026).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkv.evals.traces.turns import TracedTurn

Request = Mapping[str, Any]


def main(paths: Sequence[str]) -> None:
    """Print a line a turn, which every `--trace` takes."""
    for path in paths:
        for turn in turns_of(json.loads(Path(path).read_text(encoding="utf-8"))):
            print(turn.model_dump_json(exclude_defaults=True))


def turns_of(conversation: Mapping[str, Any]) -> Iterator[TracedTurn]:
    """Turns of a conversation and of its sub-agents, which are jobs whose parent it is.

    What a sub-agent's first prompt has in common with the conversation's is shared.
    """
    job_id, block_tokens = str(conversation["id"]), int(conversation["block_size"])
    jobs = {job_id: _calls(conversation["requests"])}
    starts_s = {job_id: 0.0}
    for number, marker in enumerate(conversation["requests"]):
        if marker.get("type") == "subagent":
            child = f"{job_id}/{marker.get('agent_id') or number}"
            calls = jobs[child] = _calls(marker.get("requests") or ())
            # some producers count a sub-agent's times from its marker, others from the start
            is_relative = bool(calls) and float(calls[0]["t"]) < float(marker["t"])
            starts_s[child] = float(marker["t"]) if is_relative else 0.0
    root = _blocks(jobs[job_id][0]) if jobs[job_id] else ()
    for name, calls in jobs.items():
        parent = None if name == job_id else job_id
        before: Request | None = None
        for number, call in enumerate(calls):
            later = calls[number + 1] if number + 1 < len(calls) else None
            ends_s = float(call["t"]) + float(call.get("api_time") or 0.0)
            has_tool = later is not None and call.get("stop") == "tool_use"
            num_shared = common_start(root, _blocks(call)) * block_tokens if number == 0 else 0
            yield TracedTurn(
                job_id=name,
                turn=number,
                prompt_tokens=max(1, int(call["in"])),
                output_tokens=int(call.get("out") or 0),
                command="tool" if has_tool else None,
                tool_s=max(0.0, float(later["t"]) - ends_s) if has_tool and later else None,
                kept_tokens=_kept_tokens(before, call, block_tokens),
                parent_job_id=parent,
                sent_s=starts_s[name] + float(call["t"]),
                ended_s=starts_s[name] + ends_s if call.get("api_time") is not None else None,
                shared_tokens=min(num_shared, int(call["in"])) or None,
                shares=job_id if num_shared else None,
            )
            before = call


def common_start(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many elements two sequences begin with in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def _calls(requests: Sequence[Request]) -> list[Request]:
    return [one for one in requests if "in" in one]


def _blocks(call: Request) -> Sequence[Any]:
    names: Sequence[Any] = call.get("hash_ids") or ()
    return names


def _kept_tokens(before: Request | None, call: Request, block_tokens: int) -> int | None:
    """Tokens that a prompt kept of the one before; None where it goes on from all of it, as far as
    is known: the last block may have filled up since."""
    if before is None or not _blocks(before) or not _blocks(call):
        return None
    num_common = common_start(_blocks(before), _blocks(call))
    return num_common * block_tokens if num_common < len(_blocks(before)) - 1 else None


if __name__ == "__main__":
    main(sys.argv[1:])
