"""Finds the jobs of agents that send no `job_id`, by prompts that continue an earlier turn.

A request that has finished is remembered for a while. A later one whose prompt repeats all of its
prompt and its reply, and goes on, is the next turn of the same conversation; the seconds between
the two tell agents from people. Runs on the engine's main thread, but for the reading of replies.
"""

from __future__ import annotations

import heapq
import itertools
import math
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from agentkv.durations import Prediction
from agentkv.durations.prediction import prediction
from agentkv.durations.ttl import TTL
from agentkv.durations.windows import DurationWindow
from agentkv.events import Inferred
from agentkv.policies.continuum import tool_name
from agentkv.policies.jobs import START_TOKENS, Context, Decision, Job, Prompt, Turn
from agentkv.policies.settings import Settings
from agentkv.protocol import JobKey
from agentkv.watchers import EventStream

from .background import BackgroundWorker
from .conversations import (
    GAPS_KEPT,
    OpenTurn,
    OpenTurns,
    SimilarRequests,
    next_turn_by,
)
from .jobs import FairStore, JobTable
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
FIRST_SILENCE_S = 2.0
"""A silence of which nothing is known. Source: Continuum's TTL at a cold start."""
USUAL_SHARE = 0.8
"""A silence is usual if it is no longer than this share of those that ended."""
OVER_S = 3_600.0
"""The silence of a job that is over: longer than any pin."""
AGENT_TOOL = re.compile(
    r"(^|[_.])(task|agents?)$|sub_?agent|spawn|delegate|hand_?off", re.IGNORECASE
)
"""Name of a tool that starts an agent: `Task`, `dispatch_agent`, `delegate_to_coworker`."""
MAX_LOOKED_AT, MAX_PARENTS = 16, 4
"""Jobs of a client, the last active first, among which a new one's parent is looked for, and those
of them that may be it."""
MAX_SEARCHES = 64
"""New jobs whose parents are looked for at a time."""
READING_S = 0.05
"""Seconds after which it is looked again whether a reply has been read."""


def inferred_id(request_id: str, client: str = "") -> JobKey:
    """Return the key of the inferred job that a request opens, which nobody can guess: vLLM adds
    random digits to its id (vllm/v1/engine/input_processor.py, 0.32.0)."""
    return JobKey(client, f"inferred-{request_id}")


class KindKey(NamedTuple):
    """Names a client's requests with the same first tokens."""

    client: str
    start: Any
    """The hash of those; None: all starts that no continued request of the client had."""


class JobInference:
    """Keeps the inferred jobs of one engine. If it is not `is_on` it never knows any."""

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
        self._kinds: FairStore[SimilarRequests] = FairStore(MAX_KINDS)
        self.found: deque[tuple[OpenTurn, str]] = deque()
        """Ended requests, each with the tool call that was read in its reply."""
        self._ending: list[tuple[float, int, int, Job]] = []
        self._numbers = itertools.count()
        self._decode: Decode | None = None
        """None until the background thread has loaded the tokenizer by a first call."""

    # A request arrives

    def job_id_of(self, request_id: str, prompt: Prompt, client: str) -> JobKey | None:
        """Return the key of the job that a request without a `job_id` continues or, where such
        requests do, opens; None if it does neither."""
        block_hashes = prompt.block_hashes
        if not self.is_on or len(block_hashes) <= self._start:
            return None
        job = self._job_continued_by(prompt.token_ids, block_hashes, client)
        if job is None:
            expects_job = self._kind_of(block_hashes, client).opens_jobs
            return inferred_id(request_id, client) if expects_job else None
        if self._jobs.get(job.job_id) is None:
            self._jobs.put(job.job_id, job)
        if job.num_turns == 1:  # its second turn proves it
            self._emit(Inferred, job.job_id)
        return job.job_id

    def _job_continued_by(
        self, prompt: Sequence[int], block_hashes: Sequence[Any], client: str
    ) -> Job | None:
        """Return the client's job whose last turn a request continues, unless a person does.

        A first turn counts for its kind as it was when it ended, too.
        """
        turn = self.turns.continued_by(prompt, block_hashes, client, self._decode)
        if turn is None:
            return None
        now_s, finished_s = self._clock(), turn.job.finished_s
        is_soon = finished_s is not None and now_s - finished_s <= GRACE_S
        was_expected = any(kind.opens_jobs for kind in turn.kinds)
        kind = self._kind(KindKey(client, block_hashes[self._start]))
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

    def _kind_of(self, block_hashes: Sequence[Any], client: str) -> SimilarRequests:
        """Return the requests of the client that a request is like."""
        key = KindKey(client, block_hashes[self._start])
        is_known = self._kinds.get(key) is not None
        return self._kind(key if is_known else KindKey(client, None))

    def _kind(self, key: KindKey) -> SimilarRequests:
        kind = self._kinds.get(key) or SimilarRequests()
        self._kinds.put(key, kind)
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
        """Have the reply of a request read that belongs to no job: it may have opened one."""
        if not self.is_on or len(context.block_hashes) <= self._start:
            return
        now_s, kind = self._clock(), self._kind_of(context.block_hashes, client)
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
        """Look whether the reply calls a tool; in the worker's thread."""
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
        """Remember a finished turn of an inferred job, whose reply is being read."""
        if len(context.block_hashes) <= self._start:
            return
        kind = self._kind_of(context.block_hashes, job.client)
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
        """End an inferred job whose last reply calls no tool, unless it goes on soon."""
        grace_s = SILENCE_S if job.goes_on_without_call else GRACE_S
        entry = (now_s + grace_s, next(self._numbers), job.num_turns, job)
        heapq.heappush(self._ending, entry)

    @property
    def next_end_s(self) -> float | None:
        """Return when `pop_ended` may have something next."""
        return self._ending[0][0] if self._ending else None

    def pop_ended(self, now_s: float) -> Iterator[Job]:
        """Return jobs that have not gone on since a reply without a tool call. O(1) without any.

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


class SilenceWindow(DurationWindow):
    """Keeps a client's last silences, and expects none that is longer than usual to end."""

    def p_over(self, seconds: float) -> float:
        usual_s = self.quantile_s(USUAL_SHARE * self.share_at_most(GRACE_S))
        return super().p_over(min(seconds, usual_s))


class Silences:
    """Learns how long each client's jobs are silent after replies without a readable call.

    Counts jobs that their clients name. One that has not gone on after GRACE_S counts as over, with
    OVER_S. While fewer than MIN_GAPS of a client are known, FIRST_SILENCE_S is expected.
    """

    def __init__(self) -> None:
        self._by_client: OrderedDict[str, SilenceWindow] = OrderedDict()
        self._open: OrderedDict[str, Job] = OrderedDict()
        """Jobs that are silent, in the order in which they fell silent."""
        first = SilenceWindow(1)
        first.observe(FIRST_SILENCE_S)
        explanation = "Too few silences of the client's jobs are known."
        self._first = prediction("uncertain", first, 0.0, "gaps", explanation)

    def began(self, job: Job, now_s: float) -> Prediction:
        """Note that a turn of the job has ended; returns when it goes on."""
        self._open[job.job_id] = job
        self._open.move_to_end(job.job_id)
        self._count_overdue(now_s)
        known = self._by_client.get(job.client)
        learned = known and next_turn_by(known, "silences of the client's jobs")
        return learned or self._first

    def ended(self, job: Job, now_s: float) -> None:
        """Note that a turn of the job has arrived."""
        self._count_overdue(now_s)
        if self._open.pop(job.job_id, None) is job:
            self._count(job, now_s - (job.finished_s or 0.0))

    def _count_overdue(self, now_s: float) -> None:
        """Count the silences that have lasted for GRACE_S. O(1) if there are none."""
        since_s = now_s - GRACE_S
        while self._open and (next(iter(self._open.values())).finished_s or 0.0) < since_s:
            _, job = self._open.popitem(last=False)
            self._count(job, OVER_S)

    def _count(self, job: Job, seconds: float) -> None:
        began_s = job.finished_s or 0.0
        has_sub_agent = any(other.last_activity_s > began_s for other in job.borrowers.values())
        runs_tool = job.decision is not None and job.decision.command is not None
        if job.is_released or has_sub_agent or runs_tool:
            return
        known = self._by_client.get(job.client)
        if known is None:
            known = self._by_client[job.client] = SilenceWindow(GAPS_KEPT)
            if len(self._by_client) > MAX_KINDS:
                self._by_client.popitem(last=False)
        known.observe(seconds)


class ParentInference:
    """Finds the job that waits for a new one whose client names no parent: one of the same client
    that has ended a turn less than GRACE_S before, with a call of a tool that starts an agent."""

    def __init__(self, jobs: JobTable, clock: Callable[[], float]) -> None:
        self._jobs = jobs
        self._clock = clock
        self._searches: dict[str, tuple[Turn, list[tuple[Job, int]]]] = {}
        """By request: a first turn, and the jobs that may wait for it, each with its turns."""
        self.next_s = math.inf
        """When `found` may find one."""

    def turn_arrived(self, turn: Turn) -> None:
        """Begin to search the parent of a job that this turn opens."""
        job, now_s = turn.job, self._clock()
        latest = itertools.islice(reversed(self._jobs.of(job.client).values()), MAX_LOOKED_AT)
        silent = [other for other in latest if other is not job and _is_silent(other, now_s)]
        if silent:
            parents = [(other, other.num_turns) for other in silent[:MAX_PARENTS]]
            self._searches[turn.request_id] = turn, parents
            self.next_s = now_s
            if len(self._searches) > MAX_SEARCHES:
                del self._searches[next(iter(self._searches))]

    def found(self) -> Iterator[tuple[Turn, Job]]:
        """Yield first turns whose parents are known now, with these. A search goes on while a reply
        is being read. O(MAX_SEARCHES)."""
        self.next_s = math.inf
        for request_id, (turn, parents) in list(self._searches.items()):
            still = [job for job, num_turns in parents if self._is_still_silent(job, num_turns)]
            parent = next((job for job in still if AGENT_TOOL.search(job.tool or "")), None)
            is_open = self._jobs.get(turn.job.job_id) is turn.job and turn.job.lender is None
            if is_open and parent is None and any(job.awaited is not None for job in still):
                self.next_s = self._clock() + READING_S
                continue
            del self._searches[request_id]
            if is_open and parent is not None:
                yield turn, parent

    def _is_still_silent(self, job: Job, num_turns: int) -> bool:
        is_kept = self._jobs.get(job.job_id) is job and not (job.live or job.is_released)
        return is_kept and job.num_turns == num_turns


def _is_silent(job: Job, now_s: float) -> bool:
    """Return whether the job has ended a turn lately and has none in the engine."""
    return not job.live and job.finished_s is not None and now_s - job.finished_s <= GRACE_S
