"""Logs of requests with the names of their blocks: AgentX and kv-cache-tester, Mooncake; and those
of TensorRT-LLM's replays and of a vLLM server.

Equal names of blocks are equal tokens, so where a prompt left the one before it is known. Sources:
kv-cache-tester's docs/trace_replay_tester.md and aiperf's docs/tutorials/weka-trace.md (2026),
Mooncake's trace format (blocks of 512), TensorRT-LLM's scaffolding/trace_replay/execution_trace.py,
vLLM 0.32's entrypoints/serve/utils/request_logger.py (level DEBUG, with
`--enable-log-requests --enable-log-outputs`).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .text import TokenCounter
from .turns import TracedTurn

MOONCAKE_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class _Request:
    """One request; times in seconds, `hashes` name the prompt's blocks."""

    sent_s: float
    ended_s: float | None
    prompt_tokens: int
    output_tokens: int
    hashes: Sequence[Any]
    pause_s: float = 0.0
    runs_tool: bool = False


def common_start(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many elements two sequences begin with in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def is_agentx(row: Mapping[str, Any]) -> bool:
    """True for a conversation of kv-cache-tester, or of AgentX."""
    requests = row.get("requests")
    return isinstance(requests, list) and "block_size" in row


def read_agentx(
    name: str, rows: Sequence[Mapping[str, Any]], count: TokenCounter
) -> Iterator[TracedTurn]:
    """A conversation and its sub-agents; what they begin with in common is shared."""
    for row in rows:
        job_id, size = str(row.get("id") or name), int(row["block_size"])
        jobs = {job_id: [one for one in row["requests"] if "in" in one]}
        starts_s = {job_id: 0.0}
        for number, marker in enumerate(row["requests"]):
            if marker.get("type") != "subagent":
                continue
            child = f"{job_id}/{marker.get('agent_id') or number}"
            inner = jobs[child] = [one for one in marker.get("requests") or () if "in" in one]
            # some producers count a sub-agent's times from its marker, others from the start
            is_relative = bool(inner) and float(inner[0]["t"]) < float(marker.get("t") or 0.0)
            starts_s[child] = float(marker.get("t") or 0.0) if is_relative else 0.0
        root = jobs[job_id][0].get("hash_ids", ()) if jobs[job_id] else ()
        for one_id, requests in jobs.items():
            made = [_agentx_request(one, starts_s[one_id]) for one in requests]
            parent = None if one_id == job_id else job_id
            yield from _turns(one_id, parent, made, size, root, job_id)


def _agentx_request(one: Mapping[str, Any], start_s: float) -> _Request:
    sent_s = start_s + float(one.get("t") or 0.0)
    took_s = one.get("api_time")
    return _Request(
        sent_s,
        None if took_s is None else sent_s + float(took_s),
        int(one["in"]),
        int(one.get("out") or 0),
        one.get("hash_ids") or (),
        runs_tool=one.get("stop") == "tool_use",
    )


def _turns(
    job_id: str,
    parent: str | None,
    requests: Sequence[_Request],
    block_tokens: int,
    shared: Sequence[Any] = (),
    shares: str | None = None,
) -> Iterator[TracedTurn]:
    """A job's turns; the time after a reply with a tool call is the tool's, other time a pause."""
    before: _Request | None = None
    for number, one in enumerate(requests):
        later = requests[number + 1] if number + 1 < len(requests) else None
        tool_s = None
        if later is not None and one.runs_tool and one.ended_s is not None:
            tool_s = max(0.0, later.sent_s - one.ended_s)
        kept = None
        if before is not None and one.hashes and before.hashes:
            common = common_start(before.hashes, one.hashes)
            # the last block may have filled up since
            if common < len(before.hashes) - 1:
                kept = common * block_tokens
        num_shared = common_start(shared, one.hashes) * block_tokens if number == 0 else 0
        yield TracedTurn(
            job_id=job_id,
            turn=number,
            prompt_tokens=max(1, one.prompt_tokens),
            output_tokens=one.output_tokens,
            command="tool" if tool_s is not None else None,
            tool_s=tool_s,
            kept_tokens=kept,
            parent_job_id=parent,
            sent_s=one.sent_s,
            ended_s=one.ended_s,
            shared_tokens=min(num_shared, one.prompt_tokens) or None,
            shares=shares if num_shared else None,
        )
        before = one


def is_mooncake(row: Mapping[str, Any]) -> bool:
    """True for a row of a Mooncake trace."""
    return "input_length" in row and "output_length" in row


def read_mooncake(
    name: str, rows: Sequence[Mapping[str, Any]], count: TokenCounter
) -> Iterator[TracedTurn]:
    """Rows of one `session_id` are a job; without ids, a prompt that holds all whole blocks of an
    earlier one is its next turn."""
    jobs: dict[str, list[_Request]] = defaultdict(list)
    tails: dict[tuple[Any, ...], str] = {}
    for number, row in enumerate(rows):
        hashes = tuple(row.get("hash_ids") or ())
        sent_s = float(row.get("timestamp") or 0.0) / 1e3
        request = _Request(
            sent_s, None, int(row["input_length"]), int(row["output_length"]), hashes
        )
        job_id = row.get("session_id")
        if job_id is None:
            # the last block of a prompt is not whole
            starts = (hashes[:end] for end in range(len(hashes), 0, -1))
            job_id = next((tails.pop(start) for start in starts if start in tails), f"r{number}")
            if len(hashes) > 1:
                tails[hashes[:-1]] = str(job_id)
        jobs[f"{name}/{job_id}"].append(request)
    for job_id, requests in jobs.items():
        yield from _turns(job_id, None, requests, MOONCAKE_BLOCK_TOKENS)


def is_tensorrt_llm(row: Mapping[str, Any]) -> bool:
    """True for an execution trace of TensorRT-LLM's scaffolding."""
    return "trace_id" in row and isinstance(row.get("events"), list)


def read_tensorrt_llm(
    name: str, rows: Sequence[Mapping[str, Any]], count: TokenCounter
) -> Iterator[TracedTurn]:
    """Conversations are jobs, with the tool calls after each reply as its tools.

    The trace has no times but the tools', so branches that ran at once are jobs by themselves.
    """
    for row in rows:
        turns: dict[str, list[TracedTurn]] = defaultdict(list)
        last: dict[tuple[int, ...], str] = {}
        for event in row["events"]:
            branch = tuple(event.get("branch_path") or ())
            if event.get("event_type") == "tool_call" and branch in last:
                job = turns[last[branch]]
                names = [job[-1].command, event.get("tool_name") or "tool"]
                spent_s = (job[-1].tool_s or 0.0) + float(event.get("duration_ms") or 0.0) / 1e3
                said = "\n".join(filter(None, names))
                job[-1] = job[-1].model_copy(update={"command": said, "tool_s": spent_s})
            elif event.get("role") == "assistant" and event.get("prompt_tokens"):
                job_id = f"{row['trace_id']}/{event.get('conversation_id', 0)}"
                last[branch] = job_id
                turns[job_id].append(
                    TracedTurn(
                        job_id=job_id,
                        turn=len(turns[job_id]),
                        prompt_tokens=event["prompt_tokens"],
                        output_tokens=event.get("completion_tokens") or 0,
                        command=None,
                        tool_s=None,
                    )
                )
        for job in turns.values():
            yield from job


_ASKED = re.compile(r"Request (\S+) details: .*?prompt_token_ids: (\[[\d, ]*\])")
_REPLIED = re.compile(
    r"Generated response (\S+?)(?: \(streaming complete\))? details: "
    r"output_token_ids: (\[[\d, ]*\])"
)
_STAMP = re.compile(r"(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)")


def is_vllm_line(line: str) -> bool:
    """True for a line of a vLLM server's log that has a request's tokens."""
    return bool(_ASKED.search(line) or _REPLIED.search(line))


def read_vllm_log(name: str, lines: Sequence[str]) -> Iterator[TracedTurn]:
    """A prompt that begins with an earlier prompt is that job's next turn."""
    asked: dict[str, tuple[float, list[int]]] = {}
    jobs: list[list[tuple[_Request, list[int]]]] = []
    for line in lines:
        if match := _ASKED.search(line):
            asked[match[1]] = (_second_of(line), json.loads(match[2]))
        elif (match := _REPLIED.search(line)) and match[1] in asked:
            sent_s, prompt = asked.pop(match[1])
            output = len(json.loads(match[2]))
            request = _Request(sent_s, _second_of(line), len(prompt), output, ())
            job = next((job for job in reversed(jobs) if _continues(job[-1][1], prompt)), None)
            if job is None:
                jobs.append(job := [])
            job.append((request, prompt))
    for number, job in enumerate(jobs):
        yield from _turns(f"{name}/{number}", None, [request for request, _ in job], 1)


def _continues(before: Sequence[int], prompt: Sequence[int]) -> bool:
    return len(before) < len(prompt) and list(prompt[: len(before)]) == list(before)


def _second_of(line: str) -> float:
    """Seconds within a year of 31-day months: enough for the time between two lines."""
    match = _STAMP.search(line)
    if match is None:
        return 0.0
    month, day, hour, minute, second = map(int, match.groups())
    return float((((month * 31 + day) * 24 + hour) * 60 + minute) * 60 + second)
