"""`agentkv verify-pin`: does this server keep a job's KV cache while its tools run?

    agentkv verify-pin --url http://localhost:8000
    agentkv verify-pin --url http://localhost:8000 --json > pins.json

Runs one job of five turns with a pause after each, reads the server's own metrics around every
turn and in every pause, and leaves a second job alone until its TTL is over. Use it on a server
that is otherwise idle.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from math import ceil
from typing import Any

import agentkv
from agentkv.command_line import DONE, FAILED, add_json, command_parser, seconds, url
from agentkv.visible import visible

from ..options import add_server
from ..player.job import Conversation
from ..server import ServerUnderTest, TurnError
from ..workload.plans import JobPlan, TurnPlan

NO_POLICY_HINT = (
    "the server has no agentkv routes, so it runs a stock policy, which frees a turn's blocks when"
    " the turn ends: start it with --scheduling-policy agentkv"
)
READING_EVERY_S = 0.3
_MAX_WAIT_FOR_IDLE_S = 10.0
"""Pins of earlier runs end by themselves; a server busy for longer is in use."""
_UNTOLD_TTL_S = 10.0
"""How long a pin may last on a server that does not tell."""
_TTL_MARGIN_S = 2.0
"""How much later than promised a pin may be seen to end."""
_SETTLE_S = 0.05
"""A turn's answer can arrive a moment before its numbers do."""
NUM_TURNS, OUTPUT_TOKENS = 5, 16


def job_of(block_size: int) -> JobPlan:
    """A job of which each turn fills a block more than the one before it."""
    turn = TurnPlan(block_size + block_size // 2, OUTPUT_TOKENS, "", 0.0)
    return JobPlan("verify-pin", 0.0, (turn,) * NUM_TURNS)


@dataclass(frozen=True, slots=True)
class TurnRow:
    """One turn: blocks in use before it, after it, and at each reading of the gap that follows.

    `blocks_full` can stay: only full blocks have a hash by which the next turn finds them, and the
    last token sampled has no KV yet. `happened` is what the server says of the job.
    """

    turn: int
    prompt_tokens: int
    cached_tokens: int
    blocks_full: int
    blocks_before: int
    blocks_after: int
    gap_blocks: tuple[int, ...]
    happened: str

    def __str__(self) -> str:
        return visible(
            f"turn {self.turn}: {self.cached_tokens} of {self.prompt_tokens} prompt tokens cached; "
            f"{self.blocks_before} blocks in use before it, {self.blocks_after} after it "
            f"({self.blocks_full} full ones can stay): {self.happened}"
        )


@dataclass(frozen=True, slots=True)
class TTLTrial:
    """A second job, left alone after its first turn until its pin expires.

    `ttl_s` is what the server said was left right after the turn, None if it did not say;
    `held_s` is when the blocks were seen free, None if they were not within `waited_s`.
    """

    blocks_before: int
    blocks_after: int
    blocks_at_end: int
    ttl_s: float | None
    held_s: float | None
    waited_s: float

    def __str__(self) -> str:
        ttl = "not told" if self.ttl_s is None else f"{self.ttl_s:.2f} s"
        seen = f"{self.blocks_at_end} blocks in use after {self.waited_s:.1f} s"
        return f"left alone: {self.blocks_after} blocks after its turn, TTL {ttl}, {seen}"


@dataclass(frozen=True, slots=True)
class PinRun:
    """A whole run. `policy` is None on a server without the agentkv routes."""

    policy: str | None
    blocks_at_start: int
    turns: tuple[TurnRow, ...]
    ttl_trial: TTLTrial
    num_foreign_requests: int


class PinExperiment:
    """The reference's experiment against one server, which may be in use by others, too."""

    def __init__(self, server: ServerUnderTest, model: str | None, gap_s: float) -> None:
        self._server = server
        self.facts = server.facts(model)
        self.pool = server.block_pool(self.facts)
        self._vocabulary = server.vocabulary(self.facts.model)
        self._gap_s = gap_s
        self._num_requests = 0

    def run(self, say: Callable[[object], None]) -> PinRun:
        """Raises TurnError if a turn gets no answer, after releasing what is pinned."""
        deadline_s = time.monotonic() + _MAX_WAIT_FOR_IDLE_S
        while self._num_held() and time.monotonic() < deadline_s:
            time.sleep(READING_EVERY_S)
        start, turns = self._server.snapshot(), []
        for row in self._turns():
            say(row)
            turns.append(row)
        trial = self._leave_to_ttl()
        num_finished = self._server.snapshot().num_finished - start.num_finished
        return PinRun(
            policy=self.facts.policy,
            blocks_at_start=start.held_blocks(self.pool),
            turns=tuple(turns),
            ttl_trial=trial,
            num_foreign_requests=num_finished - self._num_requests,
        )

    def _num_held(self) -> int:
        return self._server.snapshot().held_blocks(self.pool)

    def _turns(self) -> Iterator[TurnRow]:
        conversation = self._conversation()
        try:
            for number in range(NUM_TURNS):
                yield self._turn(conversation, number)
        finally:
            self._server.release(conversation.run_id)

    def _conversation(self) -> Conversation:
        """A new job; its id on the server is that of its run."""
        return Conversation(
            job_of(self.pool.block_size),
            self.facts.model,
            self._vocabulary,
            seed=0,
            run_id=f"verify-pin-{uuid.uuid4().hex[:12]}",
        )

    def _turn(self, conversation: Conversation, number: int) -> TurnRow:
        is_last = number == NUM_TURNS - 1
        before = self._server.snapshot()
        usage = self._complete(conversation, number, is_last_step=is_last)
        after, job = self._server.snapshot(), self._server.job(conversation.run_id)
        cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if cached_tokens is None:  # as by default: vLLM tells them on request only
            cached_tokens = after.cached_tokens - before.cached_tokens
        happened = "freed: last step" if is_last else "not pinned"
        if job.get("pinned_blocks"):
            happened = job["ttl_reason"]
        num_tokens = usage["prompt_tokens"] + usage["completion_tokens"]
        return TurnRow(
            turn=number + 1,
            prompt_tokens=usage["prompt_tokens"],
            cached_tokens=cached_tokens,
            blocks_full=(num_tokens - 1) // self.pool.block_size,
            blocks_before=before.held_blocks(self.pool),
            blocks_after=after.held_blocks(self.pool),
            gap_blocks=() if is_last else tuple(self._read_gap()),
            happened=happened,
        )

    def _read_gap(self) -> Iterator[int]:
        """Blocks in use every 0.3 s, and at the gap's end."""
        started_s = time.monotonic()
        for number in range(1, ceil(self._gap_s / READING_EVERY_S) + 1):
            due_s = started_s + min(number * READING_EVERY_S, self._gap_s)
            time.sleep(max(0.0, due_s - time.monotonic()))
            yield self._num_held()

    def _leave_to_ttl(self) -> TTLTrial:
        conversation, before = self._conversation(), self._num_held()
        self._complete(conversation, 0, is_last_step=False)
        started_s = time.monotonic()
        ttl_s = self._server.job(conversation.run_id).get("ttl_left_s")
        after = at_end = self._num_held()
        limit_s = _TTL_MARGIN_S + (_UNTOLD_TTL_S if ttl_s is None else ttl_s)
        waited_s, held_s = 0.0, None
        while after > before and held_s is None and waited_s < limit_s:
            time.sleep(READING_EVERY_S / 3)
            at_end, waited_s = self._num_held(), time.monotonic() - started_s
            held_s = waited_s if at_end <= before else None
        self._server.release(conversation.run_id)
        return TTLTrial(before, after, at_end, ttl_s, held_s, waited_s)

    def _complete(
        self, conversation: Conversation, number: int, *, is_last_step: bool
    ) -> dict[str, Any]:
        """Run one turn; returns its usage."""
        request = conversation.request(number)
        body = request | request.pop("extra_body")
        reply = self._server.complete(body, job_id=conversation.run_id, is_last_step=is_last_step)
        conversation.read(reply["choices"][0])
        conversation.end_turn(number)
        self._num_requests += 1
        time.sleep(_SETTLE_S)
        return dict(reply["usage"])


def main(argv: Sequence[str]) -> int:
    """0: pins last and end as they should; 1: they do not. Raises where nothing can be checked."""
    options = _parser().parse_args(argv)
    # With --json, standard output carries the document and nothing else.
    say = partial(print, file=sys.stderr if options.json else sys.stdout, flush=True)
    try:
        with ServerUnderTest(options.url, api_key=options.api_key) as server:
            experiment = PinExperiment(server, options.model, options.gap_s)
            facts, pool = experiment.facts, experiment.pool
            seen = f"{facts.model}, policy {facts.policy or 'without agentkv routes'}"
            say(f"{visible(seen)}, {pool.num_blocks} blocks of {pool.block_size} tokens")
            run = experiment.run(say)
    except TurnError as error:
        print(f"the run broke off: {error}", file=sys.stderr)
        return FAILED
    checks = judge(run)
    say("\n".join([str(run.ttl_trial), "", *verdict_lines(run, checks)]))
    passed = not any(checks.values())
    if options.json:
        judged = [
            {"name": name, "passed": not problems, "problems": problems}
            for name, problems in checks.items()
        ]
        version = {"agentkv_version": agentkv.__version__, "model": facts.model}
        print(json.dumps({**version, "passed": passed, "checks": judged, **asdict(run)}))
    return DONE if passed else FAILED


def judge(run: PinRun) -> dict[str, list[str]]:
    """What speaks against each claim, in the order in which the experiment meets them."""
    *turns, last = run.turns
    held = [run.blocks_at_start, *(row.blocks_after for row in turns)]
    moved, traffic = [], []
    for row in turns:
        if row.blocks_after <= run.blocks_at_start:
            moved.append(f"turn {row.turn}: no block was pinned when the turn had ended")
        elif set(row.gap_blocks) - {row.blocks_after}:
            readings = ", ".join(map(str, row.gap_blocks))
            moved.append(f"turn {row.turn}: {row.blocks_after} blocks after it, then {readings}")
    if run.blocks_at_start:
        traffic.append(f"{run.blocks_at_start} blocks were in use before the run began")
    if (number := run.num_foreign_requests) > 0:
        traffic.append(f"{number} other requests ran, so usage is not this job's alone")
    left = last.blocks_after - run.blocks_at_start
    return {
        "usage constant in every gap": moved,
        "usage grows turn by turn": [
            f"turn {turn}: {later} blocks, {earlier} before it"
            for turn, (earlier, later) in enumerate(pairwise(held), start=1)
            if later <= earlier
        ],
        "usage zero after the last step": [f"turn {last.turn}: {left} blocks are still in use"]
        if left
        else [],
        "usage zero after a TTL runs out": _left_after_ttl(run.ttl_trial),
        "cached tokens on the next turn": [
            f"turn {row.turn}: none of {row.prompt_tokens} prompt tokens were cached"
            for row in run.turns[1:]
            if row.cached_tokens <= 0
        ],
        "no other traffic during the run": traffic,
    }


def _left_after_ttl(trial: TTLTrial) -> list[str]:
    if trial.blocks_after <= trial.blocks_before:
        return ["no block was pinned after the second job's turn, so no TTL could run out"]
    if trial.held_s is not None:
        return []
    left = trial.blocks_at_end - trial.blocks_before
    return [f"{left} blocks are still pinned {trial.waited_s:.1f} s after the turn"]


def verdict_lines(run: PinRun, checks: Mapping[str, Sequence[str]]) -> list[str]:
    """Each check with its reasons; a hint at the end if a stock policy explains the failure."""
    lines = []
    for name, problems in checks.items():
        lines.append(f"{'FAIL' if problems else 'ok  '}  {name}")
        lines.extend(f"        {problem}" for problem in problems)
    if run.policy is None and any(checks.values()):
        lines.append(NO_POLICY_HINT)
    return lines


def _parser() -> Any:
    parser = command_parser("verify-pin", __doc__)
    add: Any = parser.add_argument
    add("--url", type=url, required=True, help="the server, with or without /v1")
    add_server(parser)
    gap_help = "pause after each turn; must be shorter than the TTL (default %(default)s)"
    add("--gap-s", type=seconds, default=1.0, metavar="S", help=gap_help)
    add_json(parser)
    return parser
