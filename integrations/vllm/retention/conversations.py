"""Which earlier prompt a prompt goes on from, by hashes, each of which proves all before it.

Among requests that name no job OpenTurns finds the ended turn that a prompt repeats with its reply.
Under a job's id Conversations tells apart its turns, side requests and other conversations. Times
are seconds on the caller's monotonic clock.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

from agentkv.durations.prediction import Prediction, prediction
from agentkv.durations.windows import DurationWindow
from agentkv.events import IdShared
from agentkv.policies.jobs import START_TOKENS, Context, Job, Prompt
from agentkv.protocol import JobKey
from agentkv.watchers import EventStream

from .jobs import FairStore, JobTable
from .pins import PinTable
from .predictor import Decode

MAX_REWRITTEN_TOKENS = 4
"""Tokens at the end of a prompt that may differ in the next one. Templates open a thought for the
model there and leave it out of earlier turns: at most `<think>`, blank, `</think>`, blank."""
MAX_REPLY_TOKENS = 32
"""Tokens kept of a reply's start, which also distinguish samples of one prompt, and of its end."""
RUN_TOKENS = 4
"""Tokens in a row of a reply's start or end that prove, anywhere behind the repeated prompt, that
the reply is repeated: templates leave thoughts out, write calls again, and move what follows."""
MAX_SEARCHED_TOKENS = 2048
"""Tokens behind the repeated prompt in which the reply is looked for."""
RUN_CHARS, MAX_TEXT_TOKENS, MAX_TEXTS = 12, 96, 4
"""Where no tokens prove it, a model may have written the reply in other tokens than its tokenizer
does: that many characters in a row, in the text of that many tokens, of that many turns."""
MAX_PREFIXES = 16
"""Earlier prompts, the longest first, with which a prompt may begin that are looked at."""
MAX_OUTCOMES = 64
"""Requests of a kind that count; beyond that, each counts by half as much."""
MIN_JOBS, MIN_SHARE = 4, 0.8
"""Jobs that requests of a kind must have opened, and their share, until the next one is expected to
open a job. Chosen: a request that is wrongly expected to may be held back by admission control."""
MAX_ENDED, ENDED_LEASE_S = 4096, 300.0
"""Finished requests of no job that are remembered, and for how long: 2.8 KiB each
(mean of 500, prompts of 1,000 tokens)."""
MAX_SIBLINGS = 128
"""Open turns of a client remembered of prompts that are equal up to their last full block."""
GAPS_KEPT, MIN_GAPS = 128, 8
"""Gaps of a kind that are kept, and with which a pin's length follows from them."""
MAX_OTHERS = 64
"""Prompts remembered of an id that its job did not go on from."""


class PromptStart(NamedTuple):
    """Stands for the first tokens of a prompt, by the hash of their last full block."""

    block: int
    block_hash: Any
    num_prompt_tokens: int
    """Of the whole prompt."""

    @classmethod
    def of(
        cls, prompt: Prompt | Context, num_prompt_tokens: int, num_tokens: int, block_tokens: int
    ) -> PromptStart | None:
        """Return the start of full blocks in its first `num_tokens`; None if they fill none."""
        block = min(num_tokens // block_tokens, len(prompt.block_hashes)) - 1
        return cls(block, prompt.block_hashes[block], num_prompt_tokens) if block >= 0 else None

    def begins(self, prompt: Prompt) -> bool:
        """Return whether a prompt starts with these tokens, too."""
        hashes = prompt.block_hashes
        return self.block < len(hashes) and hashes[self.block] == self.block_hash


def _packed(tokens: Sequence[int]) -> bytes:
    return array("i", tokens).tobytes()


_TOKEN_BYTES = array("i").itemsize
_REWRITTEN_BYTES = MAX_REWRITTEN_TOKENS * _TOKEN_BYTES


@dataclass(slots=True)
class SimilarRequests:
    """Requests that start alike: how those that continued nothing ended, and what came after
    replies."""

    num_ended: int = 0
    num_jobs: int = 0
    num_called: int = 0
    """Turns that followed a reply in which a tool call was read."""
    num_soon: int = 0
    """Turns that followed any other reply within GRACE_S."""
    num_late: int = 0
    """Turns that followed any other reply later."""
    gaps: DurationWindow = field(default_factory=partial(DurationWindow, GAPS_KEPT))
    """Seconds before its conversations went on, SILENCE_S where they were over."""

    def ended(self) -> None:
        """Count a request of the kind that has ended; so far nothing continues it."""
        self.num_ended += 1
        if self.num_ended > MAX_OUTCOMES:
            self.num_ended, self.num_jobs = self.num_ended // 2, self.num_jobs // 2

    def opened_job(self) -> None:
        """Count an ended request that opened a job, which goes on."""
        self.num_jobs += 1

    @property
    def opens_jobs(self) -> bool:
        """Return whether the next one is expected to open a job."""
        return self.num_jobs >= max(MIN_JOBS, MIN_SHARE * self.num_ended)

    def went_on(self, *, has_call: bool, is_soon: bool) -> None:
        """Count a conversation of the kind that went on after a reply."""
        self.num_called += has_call
        self.num_soon += is_soon and not has_call
        self.num_late += not (is_soon or has_call)
        seen = self.num_called, self.num_soon, self.num_late
        if sum(seen) > MAX_OUTCOMES:
            self.num_called, self.num_soon, self.num_late = (each // 2 for each in seen)

    @property
    def is_of_agents(self) -> bool:
        """Return whether at least half of its replies were not followed by a person's pause."""
        return self.num_called + self.num_soon >= self.num_late

    @property
    def hides_calls(self) -> bool:
        """Return whether its conversations go on although no tool call is read in most replies."""
        return self.num_soon > self.num_called

    @property
    def next_turn(self) -> Prediction | None:
        """Predict when one goes on, or is over, by MIN_GAPS gaps or more."""
        return next_turn_by(self.gaps, "turns of jobs that start alike")


def next_turn_by(gaps: DurationWindow, what: str) -> Prediction | None:
    """Predict by gaps of `what`, MIN_GAPS or more, when a conversation goes on, or is over."""
    if len(gaps) < MIN_GAPS:
        return None
    explanation = f"{len(gaps)} {what}."
    return prediction("uncertain", gaps, fast_ttl_s=0.0, source="gaps", explanation=explanation)


@dataclass(slots=True, eq=False)
class OpenTurn:
    """Holds the last turn of a job, or of a possible one, and what a next prompt repeats of it."""

    job: Job
    prompt: PromptStart
    """All of its prompt that no chat template rewrites."""
    prompt_end: bytes
    """The prompt's tokens from there on, but for those that may be rewritten."""
    reply: bytes
    """Those, and the first tokens of the reply."""
    reply_end: bytes
    kind: SimilarRequests
    """That of its start, when it ended."""
    kinds: Sequence[SimilarRequests]
    """The kinds for which a first turn counts once it is continued."""

    @classmethod
    def of(
        cls, job: Job, context: Context, kind: SimilarRequests, *, is_first: bool
    ) -> OpenTurn | None:
        """Make the turn that ended with this context; None if its prompt fills no block."""
        tokens, num_prompt_tokens = context.token_ids, context.num_prompt_tokens
        num_fixed_tokens = num_prompt_tokens - MAX_REWRITTEN_TOKENS
        block_tokens = context.block_tokens
        prompt = PromptStart.of(context, num_prompt_tokens, num_fixed_tokens, block_tokens)
        if prompt is None:
            return None
        end_start = max(num_prompt_tokens, len(tokens) - MAX_REPLY_TOKENS)
        prompt_end = tokens[(prompt.block + 1) * block_tokens : num_fixed_tokens]
        return cls(
            job=job,
            prompt=prompt,
            prompt_end=_packed(prompt_end),
            reply=_packed(tokens[num_fixed_tokens : num_prompt_tokens + MAX_REPLY_TOKENS]),
            reply_end=_packed(tokens[end_start:]),
            kind=kind,
            kinds=[kind] if is_first else (),
        )

    @property
    def has_call(self) -> bool:
        """Return whether its reply calls a tool: then repeating its prompt is proof enough."""
        decision = self.job.decision
        return decision is not None and decision.command is not None

    def rest_behind(self, num_tokens: int, rest: bytes) -> bytes | None:
        """Return what a prompt of `num_tokens`, of which `rest` is behind those blocks, has behind
        this turn's; None if it does not repeat that and go on.

        A job with a turn in the engine is not continued: that is a fork of it, or a retry.
        """
        if self.job.live or num_tokens <= self.prompt.num_prompt_tokens:
            return None
        return rest[len(self.prompt_end) :] if rest.startswith(self.prompt_end) else None

    def num_repeated_bytes(self, behind: bytes) -> int:
        """Count the bytes of the reply with which what is behind the prompt starts."""
        sizes = range(1, len(self.reply) + 1)
        return bisect_left(sizes, True, key=lambda size: not behind.startswith(self.reply[:size]))

    def is_reply_in(self, behind: bytes) -> bool:
        """Return whether the tokens of the reply's start or end are behind the prompt."""
        start = self.reply[_REWRITTEN_BYTES:]
        num_tokens = len(start) // _TOKEN_BYTES
        size = min(RUN_TOKENS, max(1, num_tokens - 1)) * _TOKEN_BYTES  # the last ends the turn
        return any(
            part[at : at + size] in behind
            for part in (start, self.reply_end)
            for at in range(0, len(part) - size + 1, _TOKEN_BYTES)
        )

    def is_text_in(self, behind: bytes, decode: Decode) -> bool:
        """Return whether text of the reply's start is behind the prompt."""
        text = decode(array("i", behind[: MAX_TEXT_TOKENS * _TOKEN_BYTES]).tolist())
        reply = decode(array("i", self.reply[_REWRITTEN_BYTES:-_TOKEN_BYTES]).tolist())
        size = min(RUN_CHARS, len(reply))
        starts = range(len(reply) - size + 1) if size else ()
        return any(reply[at : at + size] in text for at in starts)


class OpenTurns:
    """Keeps the open turns of one engine, at most one a job.

    Those of jobs are kept apart from those of requests that may have opened one, of which any
    traffic leaves many.
    """

    def __init__(self, block_tokens: int, *, max_jobs: int, lease_s: float) -> None:
        self._block_tokens = block_tokens
        self._lease_s = lease_s
        self._of_jobs: FairStore[OpenTurn] = FairStore(max_jobs)
        self._of_requests: FairStore[OpenTurn] = FairStore(min(max_jobs, MAX_ENDED))
        self._by_hash: dict[str, dict[Any, list[OpenTurn]]] = {}
        """By client, and by the hash of the prompt."""

    def __len__(self) -> int:
        return len(self._of_jobs) + len(self._of_requests)

    def get(self, job_id: JobKey) -> OpenTurn | None:
        return self._of_jobs.get(job_id) or self._of_requests.get(job_id)

    def put(self, turn: OpenTurn, now_s: float, *, is_of_job: bool) -> None:
        """Add a last turn in place of the one before; drops those that are too old, or too many."""
        job_id, block_hash = turn.job.job_id, turn.prompt.block_hash
        self.remove(job_id)
        siblings = self._by_hash.setdefault(job_id.client, {}).setdefault(block_hash, [])
        if len(siblings) >= MAX_SIBLINGS:
            self.remove(siblings[0].job.job_id)
        siblings.append(turn)
        turns, lease_s = self._of_jobs, self._lease_s
        if not is_of_job:
            turns, lease_s = self._of_requests, min(lease_s, ENDED_LEASE_S)
        aged_s = now_s - lease_s
        while (oldest := next(iter(turns), None)) and oldest.job.last_activity_s <= aged_s:
            self.remove(oldest.job.job_id)
        if pushed_out := turns.put(job_id, turn):
            self._unlink(pushed_out)

    def remove(self, job_id: JobKey) -> None:
        """Drop a job's open turn, if there is one."""
        turn = self._of_jobs.pop(job_id) or self._of_requests.pop(job_id)
        if turn is not None:
            self._unlink(turn)

    def _unlink(self, turn: OpenTurn) -> None:
        client, block_hash = turn.job.client, turn.prompt.block_hash
        known = self._by_hash[client]
        known[block_hash].remove(turn)
        if not known[block_hash]:
            del known[block_hash]
        if not known:
            del self._by_hash[client]

    def continued_by(
        self, prompt: Sequence[int], block_hashes: Sequence[Any], client: str, decode: Decode | None
    ) -> OpenTurn | None:
        """Return the client's turn that a prompt continues: what it repeats most, then the oldest.

        One look-up for each block of the prompt that is new since that turn's prompt; for each of
        all its blocks, 0.02 microseconds each (median and p90 of 300 calls), if there is none.
        """
        turns = self._by_hash.get(client, {})
        known = filter(turns.__contains__, reversed(block_hashes))
        for block_hash in itertools.islice(known, MAX_PREFIXES):
            siblings = turns[block_hash]
            start = (siblings[0].prompt.block + 1) * self._block_tokens
            rest = _packed(prompt[start : start + MAX_SEARCHED_TOKENS])
            parts = {
                turn: part
                for turn in siblings
                if (part := turn.rest_behind(len(prompt), rest)) is not None
            }
            proven = [turn for turn in parts if turn.has_call or turn.is_reply_in(parts[turn])]
            if decode is not None and not proven:
                latest = list(parts)[-MAX_TEXTS:]
                proven = [turn for turn in latest if turn.is_text_in(parts[turn], decode)]
            if proven:
                return max(proven, key=lambda turn: turn.num_repeated_bytes(parts[turn]))
        return None


@dataclass(slots=True)
class ConversationHistory:
    """Remembers the prompts that came under one id."""

    start: PromptStart | None = None
    """The first 64 tokens of the job's last own prompt."""
    whole: PromptStart | None = None
    """All of it that no template rewrites; None if that fills no block."""
    others: deque[PromptStart] = field(default_factory=lambda: deque(maxlen=MAX_OTHERS))
    """Other prompts as a whole: side requests, and own ones that the next one did not repeat."""
    is_shared: bool = False

    def goes_on_from_other(self, prompt: Prompt) -> bool:
        num_tokens = len(prompt.token_ids)
        return any(
            other.num_prompt_tokens < num_tokens and other.begins(prompt) for other in self.others
        )


class Conversations:
    """Tells whether a request under a job's id is its next turn, a side request, or another
    conversation. O(1) for a turn that goes on from the last.

    A side request (a title, tags, a summary) is shorter than what the job has at the moment, and
    starts otherwise. An id is shared, as one X-Session-ID for a whole application is, once a prompt
    goes on from one that the job had left: from then on the others are inferred as without an id.
    """

    def __init__(
        self, block_tokens: int, jobs: JobTable, pins: PinTable[Any], stream: EventStream
    ) -> None:
        self._block_tokens, self._jobs, self._pins = block_tokens, jobs, pins
        self._emit = stream.emit
        self._by_job: dict[str, ConversationHistory] = {}

    def relation(self, job_id: str, prompt: Prompt) -> Literal["turn", "side request", "another"]:
        """Tell if a request is its job's next turn, a side request, or another conversation's."""
        job, history = self._jobs.get(job_id), self._by_job.get(job_id)
        if job is None or history is None or history.whole is None:
            return "turn"
        if history.whole.begins(prompt):
            return "turn"
        if not history.is_shared and history.goes_on_from_other(prompt):
            history.is_shared = True
            self._emit(IdShared, job.job_id)
        if history.is_shared:
            return "another"
        is_alike = history.start is None or history.start.begins(prompt)
        if is_alike or job.common_tokens(prompt, self._block_tokens):
            return "turn"
        is_active = bool(job.live) or self._pins.get(job.job_id) is not None
        lengths = [turn.num_prompt_tokens for turn in job.live.values() if not turn.is_side_request]
        is_shorter = len(prompt.token_ids) < max([job.context_tokens, *lengths])
        return "side request" if is_active and is_shorter else "turn"

    def arrived(self, job: Job, prompt: Prompt, *, is_side_request: bool) -> None:
        """Note the prompt of a turn of the job, or of a side request."""
        history = self._by_job.get(job.job_id)
        if history is None:
            history = self._by_job[job.job_id] = ConversationHistory()
        num_tokens, size = len(prompt.token_ids), self._block_tokens
        whole = PromptStart.of(prompt, num_tokens, num_tokens - MAX_REWRITTEN_TOKENS, size)
        last = history.whole
        if is_side_request:
            if whole not in (None, history.whole):
                history.others.append(whole)
            return
        history.whole = whole
        if last is None or not last.begins(prompt):  # else its start, too, is as it was
            history.start = PromptStart.of(prompt, num_tokens, max(START_TOKENS, size), size)
            if last is not None:
                history.others.append(last)

    def forget(self, job_id: str) -> None:
        """Forget the prompts of a job that is over."""
        self._by_job.pop(job_id, None)
