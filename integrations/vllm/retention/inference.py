"""Finds the jobs of agents that send no `job_id`, by prompts that continue an earlier turn.

A request that has finished is remembered for a while. A later one whose prompt repeats all of its
prompt and its reply, and goes on, is the next turn of the same conversation; the seconds between
the two tell agents from people. Runs on the engine's main thread, but for the reading of replies.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from agentkv.durations.ttl import TTL
from agentkv.events import Inferred
from agentkv.policies.continuum import tool_name
from agentkv.policies.jobs import START_TOKENS, Context, Decision, Job, Prompt
from agentkv.policies.settings import Settings
from agentkv.protocol import JobKey
from agentkv.watchers import EventStream

from .background import BackgroundWorker
from .conversations import OpenTurn, OpenTurns, SimilarRequests
from .jobs import JobTable
from .predictor import Decode, Reply

END_TOKENS = 64
"""Tokens at the end of a reply in which a tool call would be closed."""
_CLOSERS = frozenset("`~}>])")
"""Characters of which a call ends with one, in every dialect."""
MAX_KINDS = 1000
"""Kinds of requests remembered that have been continued."""
GRACE_S = 10.0
"""Seconds in which an agent goes on after a reply in which no tool call was read, as a rule: so do
over 9 in 10 of recorded coding agents' tools, and 4% of people (arXiv 2402.01869, table 1)."""
SILENCE_S = 60.0
"""Seconds without a next turn that end a job whose tool calls cannot be read."""


def inferred_id(request_id: str, client: str = "") -> JobKey:
    """Key of the inferred job that a request opens. No client can guess another's: vLLM makes each
    request's id unique by random digits (vllm/v1/engine/input_processor.py, 0.32.0)."""
    return JobKey(client, f"inferred-{request_id}")


class JobInference:
    """The inferred jobs of one engine. If it is not `is_on` it never knows any."""

    def __init__(
        self,
        settings: Settings,
        worker: BackgroundWorker,
        clock: Callable[[], float],
        block_tokens: int,
        jobs: JobTable,
        stream: EventStream,
    ) -> None:
        """`worker` reads replies; jobs that are found come into `jobs`."""
        self._jobs = jobs
        self._clock = clock
        self._emit = stream.emit
        self.is_on = settings.infer_jobs
        self.turns = OpenTurns(
            block_tokens, max_jobs=settings.max_jobs, lease_s=settings.job_lease_s
        )
        self._worker = worker
        self._start = max(1, START_TOKENS // block_tokens) - 1
        self._kinds: OrderedDict[Any, SimilarRequests] = OrderedDict()
        self._others = SimilarRequests()
        """Requests whose start no continued one had."""
        self.found: deque[tuple[OpenTurn, str]] = deque()
        """Ended requests, each with the tool call that was read in its reply."""
        self._ending: list[tuple[float, int, int, Job]] = []
        self._numbers = itertools.count()
        self._decode: Decode | None = None
        """None until the background thread has loaded the tokenizer by a first call."""

    # A request arrives

    def job_id_of(self, request_id: str, prompt: Prompt, client: str) -> JobKey | None:
        """Key of the job that a request without a `job_id` continues or, where such requests do,
        opens; None if it does neither."""
        block_hashes = prompt.block_hashes
        if not self.is_on or len(block_hashes) <= self._start:
            return None
        job = self._job_continued_by(prompt.token_ids, block_hashes, client)
        if job is None:
            expects_job = self._kind_of(block_hashes).opens_jobs
            return inferred_id(request_id, client) if expects_job else None
        if self._jobs.get(job.job_id) is None:
            self._jobs.add(job)
        if job.num_turns == 1:  # its second turn proves it
            self._emit(Inferred, job.job_id)
        return job.job_id

    def _job_continued_by(
        self, prompt: Sequence[int], block_hashes: Sequence[Any], client: str
    ) -> Job | None:
        """The client's job whose last turn a request continues, unless a person does.

        A first turn counts for its kind as it was when it ended, too.
        """
        turn = self.turns.continued_by(prompt, block_hashes, client, self._decode)
        if turn is None:
            return None
        now_s, finished_s = self._clock(), turn.job.finished_s
        is_soon = finished_s is not None and now_s - finished_s <= GRACE_S
        was_expected = any(kind.opens_jobs for kind in turn.kinds)
        kind = self._continued_kind(block_hashes[self._start])
        others = [other for other in turn.kinds if other is not kind]
        for each in (kind, *others):
            each.went_on(has_call=turn.has_call, is_soon=is_soon)
        if finished_s is not None and not turn.has_call:
            kind.gaps.observe(now_s - finished_s)
        if not (turn.has_call or was_expected or kind.is_of_agents):
            self.turns.remove(turn.job.job_id)
            return None
        if turn.kinds:
            for each in (kind, *others):
                each.opened_job()
            if others:  # it did not count for this kind when it ended
                kind.ended()
            turn.kinds = ()
        self.turns.put(turn, now_s, is_of_job=True)
        return turn.job

    def _kind_of(self, block_hashes: Sequence[Any]) -> SimilarRequests:
        return self._kinds.get(block_hashes[self._start], self._others)

    def _continued_kind(self, start_hash: Any) -> SimilarRequests:
        kind = self._kinds.setdefault(start_hash, SimilarRequests())
        self._kinds.move_to_end(start_hash)
        if len(self._kinds) > MAX_KINDS:
            self._kinds.popitem(last=False)
        return kind

    # A turn ends

    def request_ended(
        self,
        request_id: str,
        order: int,
        context: Context,
        client: str,
        reply: Callable[[], Reply],
    ) -> None:
        """A request of no job has finished, and may have opened one: have its reply read."""
        if not self.is_on or len(context.block_hashes) <= self._start:
            return
        now_s, kind = self._clock(), self._kind_of(context.block_hashes)
        job = Job(inferred_id(request_id, client), order, is_inferred=True)
        job.first_prompt_tokens = context.num_prompt_tokens
        job.kind = context.block_hashes[self._start]
        job.num_turns, job.has_run, job.last_activity_s = 1, True, now_s
        turn = OpenTurn.of(job, context, kind, is_first=True)
        if turn is None:
            return
        kind.ended()
        job.finish_turn(now_s, context)
        self.turns.put(turn, now_s, is_of_job=False)
        self._worker.do(partial(self._look_for_call, turn, reply()), client)

    def _look_for_call(self, turn: OpenTurn, reply: Reply) -> None:
        """In the worker's thread."""
        text, self._decode = reply.decode(reply.token_ids[-END_TOKENS:]), reply.decode
        found = None if _CLOSERS.isdisjoint(text) else reply.tool_command()
        if found is not None:
            self.found.append((turn, found.command))

    def take_found(self) -> None:
        """Note which ended requests were found to call a tool. O(1) if there are none."""
        while self.found:
            turn, command = self.found.popleft()
            if self.turns.get(turn.job.job_id) is turn and turn.kinds:
                turn.job.tool = tool_name(command) or None
                turn.job.decision = Decision(TTL(0.0, "not pinned: no job was known"), command)
                self.turns.put(turn, self._clock(), is_of_job=True)

    def turn_finished(self, job: Job, context: Context) -> None:
        """A turn of an inferred job has finished, and its reply is being read."""
        if len(context.block_hashes) <= self._start:
            return
        kind = self._kind_of(context.block_hashes)
        job.goes_on_without_call = kind.hides_calls
        job.next_turn = kind.next_turn if kind.hides_calls else None
        is_first = job.num_turns == 1
        turn = OpenTurn.of(job, context, kind, is_first=is_first)
        if turn is not None:
            self.turns.put(turn, self._clock(), is_of_job=True)
        if is_first:
            kind.ended()

    # A job ends

    def no_tool_called(self, job: Job, now_s: float) -> None:
        """The last reply of an inferred job calls no tool: it is over if it does not go on soon."""
        grace_s = SILENCE_S if job.goes_on_without_call else GRACE_S
        entry = (now_s + grace_s, next(self._numbers), job.num_turns, job)
        heapq.heappush(self._ending, entry)

    @property
    def next_end_s(self) -> float | None:
        """When `pop_ended` may have something next."""
        return self._ending[0][0] if self._ending else None

    def pop_ended(self, now_s: float) -> Iterator[Job]:
        """Jobs that have not gone on since a reply without a tool call. O(1) if there are none.

        One whose calls cannot be read may go on all the same: its turn stays open.
        """
        while self._ending and self._ending[0][0] <= now_s:
            *_, num_turns, job = heapq.heappop(self._ending)
            if job.num_turns == num_turns and not job.live:
                turn = self.turns.get(job.job_id) if job.goes_on_without_call else None
                yield job
                if turn is not None:
                    turn.kind.gaps.observe(SILENCE_S)
                    self.turns.put(turn, now_s, is_of_job=False)

    def forget(self, job: Job) -> None:
        """A job is over, or no longer inferred."""
        self.turns.remove(job.job_id)
