"""Plays one job on a server through the client library: turns, tools, and what each took.

Prompts are token ids for `/v1/completions`, of exactly the planned length, with the model's own
tokens as it generated them, so a prefix repeats to the last token. (A chat template adds tokens,
and text read back may tokenize otherwise.)
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import agentkv
from agentkv.errors import RunError

from ..outcomes import JobOutcome, JobStatus, TurnOutcome
from ..workload.plans import JobPlan, TurnPlan

_END_OF_STREAM = "data: [DONE]"
_MAX_ERROR_CHARS = 300


def added_by(vocabulary: Sequence[int], seed: int, job: JobPlan, turn: int) -> list[int]:
    """What a turn of a job adds, the same every time; the first begins with its prefixes."""
    added: list[int] = []
    ends = {prefix.name: prefix.num_tokens for prefix in job.prefixes if turn == 0}
    ends[f"{job.job_id} {turn}"] = job.turns[turn].added_tokens
    for name, end in ends.items():
        added += random.Random(f"{seed} text {name}").choices(vocabulary, k=end - len(added))
    return added


@dataclass(slots=True)
class Conversation:
    """One job's exchange with the model, greedy: `request`, `read` its events, `end_turn`, again.

    `run_id` keeps runs and jobs apart in the server's prefix cache, but for jobs with a common
    prefix.
    """

    job: JobPlan
    model: str
    vocabulary: Sequence[int]
    seed: int
    run_id: str
    _token_ids: list[int] = field(default_factory=list)
    _output_token_ids: list[int] = field(default_factory=list)

    def request(self, turn: int) -> dict[str, Any]:
        """Arguments of the OpenAI client's `create` for this turn."""
        plan = self.job.turns[turn]
        if plan.kept_tokens is not None:
            del self._token_ids[plan.kept_tokens :]
        self._token_ids += added_by(self.vocabulary, self.seed, self.job, turn)
        self._output_token_ids = []
        shared = next((prefix.name for prefix in self.job.prefixes), self.job.job_id)
        extra = {
            "min_tokens": plan.output_tokens,
            "ignore_eos": True,
            "return_token_ids": True,
            # a digest: vLLM allows few characters in it
            "cache_salt": _digest(f"{self.run_id} {shared}"),
            # as an argument the SDK would look at each token, a tenth of a second per prompt
            "prompt": list(self._token_ids),
        }
        return {
            "model": self.model,
            "prompt": "",
            "max_tokens": plan.output_tokens,
            "temperature": 0.0,
            "extra_body": extra,
        }

    def read(self, choice: Mapping[str, Any]) -> bool:
        """Take in one choice of an event of the reply; True if it brought a token."""
        token_ids = choice.get("token_ids") or []
        self._output_token_ids += token_ids
        return bool(token_ids)

    def end_turn(self, turn: int) -> str:
        """End the turn after a complete reply; returns the command to run."""
        if not self._output_token_ids:
            raise RunError("the reply has no token ids: is this a vLLM server?")
        self._token_ids += self._output_token_ids
        return self.job.turns[turn].command

    def output_digest(self) -> str:
        return _digest(",".join(map(str, self._output_token_ids)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(slots=True)
class _Reply:
    """A reply while it arrives."""

    sent_s: float
    first_token_s: float | None = None
    is_whole: bool = False
    usage: Mapping[str, Any] = field(default_factory=dict)


OnTurn = Callable[[JobOutcome, TurnOutcome, bool], None]
"""Called with the job so far, each turn as it ends, and whether it is the job's last."""


@dataclass(slots=True)
class JobPlayer:
    """Plays jobs with one OpenAI client; `clock` gives seconds since the start of the run.

    A turn's failure ends its job, and so does cancelling the task; neither is raised.
    """

    client: Any
    conversation: Callable[[JobPlan], Conversation]
    run_id: str
    clock: Callable[[], float]
    on_turn: OnTurn
    has_seen_cached_tokens: bool = False
    children: list[JobOutcome] = field(default_factory=list)
    """Jobs that turns of other jobs started, as they end."""

    async def play(self, plan: JobPlan) -> JobOutcome:
        """Play the whole job, starting now: as a job of the server, unless it is a person's."""
        if not plan.is_tagged:
            return await self._play(plan, None)
        session = agentkv.session(
            self.client, job_id=f"{self.run_id}-{plan.job_id}", on_missing_server="ignore"
        )
        async with session as job:
            job.limit_turns(len(plan.turns))
            return await self._play(plan, job)

    async def _play(self, plan: JobPlan, job: Any) -> JobOutcome:
        arrived_s = self.clock()
        turns: list[TurnOutcome] = []
        conversation = self.conversation(plan)
        for number in range(len(plan.turns)):
            turn, ending = await self._turn(job, conversation, plan, number)
            turns.append(turn)
            so_far = JobOutcome(
                job_id=plan.job_id,
                arrived_s=arrived_s,
                ended_s=self.clock(),
                status=ending or "cut",
                turns=tuple(turns),
                role=plan.role,
            )
            self.on_turn(so_far, turn, ending is not None)
            if ending is not None:
                break
        return so_far

    async def _turn(
        self, job: Any, conversation: Conversation, plan: JobPlan, number: int
    ) -> tuple[TurnOutcome, JobStatus | None]:
        """Play a turn with its tool; returns how the job ended, too, if it ended here."""
        reply = _Reply(sent_s=self.clock())
        is_last = number == len(plan.turns) - 1
        error: str | None = None
        ending: JobStatus | None = None
        tool_s = 0.0
        try:
            request = conversation.request(number)
            client = self.client if job is None else job.client
            await self._exchange(client, conversation, request, reply)
            command = conversation.end_turn(number)
        except asyncio.CancelledError:
            error, ending = "cut: the run ended first", "cut"
        except Exception as failure:  # of any kind: this job failed and the others go on
            error, ending = _describe(failure), "failed"
        ended_s = self.clock()
        if error is None and is_last:
            ending = "done"
        elif error is None:
            tool_s, is_cut = await self._follow(job, command, plan.turns[number])
            ending = "cut" if is_cut else None
        cached_tokens = (reply.usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        self.has_seen_cached_tokens |= cached_tokens is not None
        outcome = TurnOutcome(
            turn=number,
            sent_s=reply.sent_s,
            first_token_s=reply.first_token_s,
            ended_s=ended_s,
            prompt_tokens=reply.usage.get("prompt_tokens") or 0,
            cached_tokens=cached_tokens or 0,
            output_tokens=reply.usage.get("completion_tokens") or 0,
            tool_s=tool_s,
            error=error,
            output_digest=None if error else conversation.output_digest(),
        )
        return outcome, ending

    async def _exchange(
        self, client: Any, conversation: Conversation, request: dict[str, Any], reply: _Reply
    ) -> None:
        """Send the request and read the stream as plain JSON, event by event.

        The SDK's own event objects would take most of a core at a few thousand tokens per second.
        """
        stream = client.completions.with_streaming_response.create(
            **request, stream=True, stream_options={"include_usage": True}
        )
        async with stream as response:
            async for line in response.iter_lines():
                reply.is_whole = reply.is_whole or line == _END_OF_STREAM
                if not line.startswith("data:") or line == _END_OF_STREAM:
                    continue
                event = json.loads(line.removeprefix("data:"))
                if "error" in event:
                    raise RunError(str(event["error"]))
                reply.usage = event.get("usage") or reply.usage
                for choice in event.get("choices", ()):
                    if conversation.read(choice) and reply.first_token_s is None:
                        reply.first_token_s = self.clock()
        if not reply.is_whole:
            raise RunError("no stream of events, or one that broke off before its end")

    async def _follow(self, job: Any, command: str, plan: TurnPlan) -> tuple[float, bool]:
        """Run the tool after a turn, and its children; then pause.

        Sleeps for the tool's time and reports it to the server. Returns its seconds, and True if
        cut short.
        """
        started_s, tool_s = self.clock(), 0.0
        try:
            if job is not None:
                try:
                    async with job.tool(command):
                        children = map(self._play_child, plan.children)
                        await asyncio.gather(asyncio.sleep(plan.tool_s), *children)
                finally:
                    tool_s = self.clock() - started_s
            if plan.pause_s:
                await asyncio.sleep(plan.pause_s)
        except asyncio.CancelledError:
            return tool_s, True
        return tool_s, False

    async def _play_child(self, plan: JobPlan) -> None:
        await asyncio.sleep(plan.arrival_s)
        self.children.append(await self.play(plan))


def _describe(failure: Exception) -> str:
    cause = failure.__cause__
    because = "" if cause is None else f" ({type(cause).__name__}: {cause})"
    return f"{type(failure).__name__}: {failure}{because}"[:_MAX_ERROR_CHARS]
