"""Plays one job on a server through the client library: turns, tools, and what each took."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import agentkv
from agentkv.client.replies import Usage, read_usage
from agentkv.errors import RunError

from ..outcomes import JobOutcome, JobStatus, TurnOutcome
from ..rivals import agentic_context
from ..workload.plans import JobPlan, TurnPlan
from .conversations import Conversation

_END_OF_STREAM = "data: [DONE]"
_MAX_ERROR_CHARS = 300

OnTurn = Callable[[JobOutcome, TurnOutcome, bool], None]
"""Called with the job so far, each turn as it ends, and whether it is the job's last."""


@dataclass(slots=True)
class _Reply:
    """A reply while it arrives."""

    sent_s: float
    first_token_s: float | None = None
    is_whole: bool = False
    usage: Usage = field(default_factory=Usage)


@dataclass(slots=True)
class JobPlayer:
    """Plays jobs with one OpenAI client; `clock` gives seconds since the start of the run.

    for_rival: each request carries `agentic_context`, too.

    A turn's failure ends its job, and so does cancelling the task; neither is raised.
    """

    client: Any
    conversation: Callable[[JobPlan], Conversation]
    run_id: str
    clock: Callable[[], float]
    on_turn: OnTurn
    for_rival: bool = False
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
        error: str | None = None
        ending: JobStatus | None = None
        tool_s = 0.0
        try:
            client = self.client if job is None else job.client
            request = conversation.request(number)
            if self.for_rival and job is not None:
                is_last = number == len(plan.turns) - 1
                xargs = agentic_context(job.job_id, is_last_step=is_last)
                request.setdefault("extra_body", {})["vllm_xargs"] = xargs
            await self._exchange(client, conversation, request, reply)
            command = conversation.end_turn(number)
        except asyncio.CancelledError:
            error, ending = "cut: the run ended first", "cut"
        except Exception as failure:  # of any kind: this job failed and the others go on
            error, ending = _describe(failure), "failed"
        ended_s = self.clock()
        if error is None and number == len(plan.turns) - 1:
            ending = "done"
        elif error is None:
            tool_s, is_cut = await self._follow(job, command, plan.turns[number])
            ending = "cut" if is_cut else None
        outcome = TurnOutcome(
            turn=number,
            sent_s=reply.sent_s,
            first_token_s=reply.first_token_s,
            ended_s=ended_s,
            prompt_tokens=reply.usage.prompt_tokens or 0,
            cached_tokens=reply.usage.cached_tokens or 0,
            output_tokens=reply.usage.output_tokens or 0,
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
        is_chat = conversation.path == "chat"
        resource = client.chat.completions if is_chat else client.completions
        usage = {"include_usage": True}
        stream = resource.with_streaming_response.create(
            **request, stream=True, stream_options=usage
        )
        async with stream as response:
            async for line in response.iter_lines():
                reply.is_whole = reply.is_whole or line == _END_OF_STREAM
                if not line.startswith("data:") or line == _END_OF_STREAM:
                    continue
                event = json.loads(line.removeprefix("data:"))
                if "error" in event:
                    raise RunError(str(event["error"]))
                if conversation.read(event) and reply.first_token_s is None:
                    reply.first_token_s = self.clock()
                reply.usage = read_usage(event) or reply.usage
                # not every server closes a stream as OpenAI's does
                is_finished = any(part.get("finish_reason") for part in event.get("choices", ()))
                reply.is_whole = reply.is_whole or is_finished
        if not reply.is_whole:
            raise RunError("no stream of events, or one that broke off before its end")
        if reply.usage.cached_tokens is not None:
            self.has_seen_cached_tokens = True

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
