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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from math import ceil
from typing import Any

import agentkv
from agentkv.command_line import DONE, FAILED, add_json, command_parser, seconds, url
from agentkv.visible import visible

from ..options import add_server
from ..server import ServerUnderTest, TurnError

NO_POLICY_HINT = (
    "the server has no agentkv routes, so it runs a stock policy, which frees a turn's blocks when"
    " the turn ends: start it with --scheduling-policy agentkv"
)
HEADINGS = "turn  prompt  cached  output  latency ms  before  after  full   gap  happened"
LEGEND = (
    "tokens of prompt, found in the cache, and generated; blocks in use before and after a turn;"
    "\nfull = whole blocks of its context, which can stay (the last token sampled has no KV yet);"
    "\ngap = largest change while the tool ran"
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
_CHARS_PER_TOKEN = 4
"""Tokenizers make 2.5 to 4.5 characters of such text into one token; a low guess gives text that
is rather too long than too short."""
_OUTPUT_TOKENS = 80
_BLOCKS_PER_TURN = 1.5
"""Each turn must fill at least one block more than the one before it."""


SYSTEM_PROMPT = "You write bash commands. Answer with only a bash block, without any explanation."
USER_PROMPTS = (
    *("List files in the project.", "Read main.py.", "Search for TODO comments."),
    *("Check git status.", "Run pytest."),
)


def simulated_output(block_size: int) -> str:
    """Output of a turn's tool: about what the reference experiment's had, or more if blocks are
    larger."""
    line = "src/module_{0:03d}.py:7: # TODO: case {0}"
    num_chars = _CHARS_PER_TOKEN * max(_OUTPUT_TOKENS, _BLOCKS_PER_TURN * block_size)
    return "\n".join(map(line.format, range(ceil(num_chars / len(line.format(0))))))


def first_messages(block_size: int) -> list[dict[str, str]]:
    """The system prompt, with enough notes on the project that the first turn fills a block."""
    return [{"role": "system", "content": f"{SYSTEM_PROMPT}\n{simulated_output(block_size)}"}]


@dataclass(frozen=True, slots=True)
class TurnRow:
    """One turn: blocks in use before it, after it, and at each reading of the gap that follows.

    `blocks_full` can stay: only full blocks have a hash by which the next turn finds them, and the
    last token sampled has no KV yet. `happened` is what the server says of the job.
    """

    turn: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    latency_s: float
    blocks_full: int
    blocks_before: int
    blocks_after: int
    gap_blocks: tuple[int, ...]
    happened: str

    def __str__(self) -> str:
        """The turn as a line under HEADINGS."""
        changes = (blocks - self.blocks_after for blocks in self.gap_blocks)
        gap = f"{max(changes, key=abs):+d}" if self.gap_blocks else "-"
        return (
            f"{self.turn:4}  {self.prompt_tokens:6}  {self.cached_tokens:6}  "
            f"{self.output_tokens:6}  {self.latency_s * 1e3:10.0f}  {self.blocks_before:6}  "
            f"{self.blocks_after:5}  {self.blocks_full:4}  {gap:>4}  {visible(self.happened)}"
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

    base_url: str
    model: str
    policy: str | None
    block_size: int
    num_blocks: int
    gap_s: float
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
        self._gap_s = gap_s
        self._num_requests = 0
        self._max_foreign_running = 0

    def run(self, say: Any) -> PinRun:
        """Raises TurnError if a turn gets no answer, after releasing what is pinned."""
        start, deadline_s = self._server.snapshot(), time.monotonic() + _MAX_WAIT_FOR_IDLE_S
        while start.held_blocks(self.pool) and time.monotonic() < deadline_s:
            time.sleep(READING_EVERY_S)
            start = self._server.snapshot()
        turns = []
        for row in self._five_turns():
            say(row)
            turns.append(row)
        trial = self._leave_to_ttl()
        num_finished = self._server.snapshot().num_finished - start.num_finished
        return PinRun(
            base_url=self._server.root_url,
            model=self.facts.model,
            policy=self.facts.policy,
            block_size=self.pool.block_size,
            num_blocks=self.pool.num_blocks,
            gap_s=self._gap_s,
            blocks_at_start=start.held_blocks(self.pool),
            turns=tuple(turns),
            ttl_trial=trial,
            num_foreign_requests=max(num_finished - self._num_requests, self._max_foreign_running),
        )

    def _five_turns(self) -> Iterator[TurnRow]:
        job_id, block_size = f"verify-pin-{uuid.uuid4().hex[:12]}", self.pool.block_size
        messages = first_messages(block_size)
        before_prompt = ""
        try:
            for turn, prompt in enumerate(USER_PROMPTS, start=1):
                messages.append({"role": "user", "content": before_prompt + prompt})
                row, reply = self._turn(turn, messages, job_id)
                yield row
                messages.append({"role": "assistant", "content": reply})
                before_prompt = f"Output:\n{simulated_output(block_size)}\n\n"
        finally:
            self._server.release(job_id)

    def _turn(self, turn: int, messages: list[dict[str, str]], job_id: str) -> tuple[TurnRow, str]:
        is_last = turn == len(USER_PROMPTS)
        before = self._server.snapshot()
        reply, latency_s = self._chat(messages, job_id, is_last_step=is_last)
        usage = reply["usage"]
        after, job = self._server.snapshot(), self._server.job(job_id)
        cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if cached_tokens is None:  # as by default: vLLM tells them on request only
            cached_tokens = after.cached_tokens - before.cached_tokens
        happened = "freed: last step" if is_last else "not pinned"
        if job.get("pinned_blocks"):
            happened = job["ttl_reason"]
        row = TurnRow(
            turn=turn,
            prompt_tokens=usage["prompt_tokens"],
            output_tokens=usage["completion_tokens"],
            cached_tokens=cached_tokens,
            latency_s=latency_s,
            blocks_full=(usage["prompt_tokens"] + usage["completion_tokens"] - 1)
            // self.pool.block_size,
            blocks_before=before.held_blocks(self.pool),
            blocks_after=after.held_blocks(self.pool),
            gap_blocks=() if is_last else tuple(self._read_gap()),
            happened=f"{USER_PROMPTS[turn - 1]} {happened}",
        )
        return row, reply["choices"][0]["message"]["content"] or ""

    def _read_gap(self) -> Iterator[int]:
        """Blocks in use every 0.3 s, and at the gap's end."""
        started_s = time.monotonic()
        for number in range(1, ceil(self._gap_s / READING_EVERY_S) + 1):
            due_s = started_s + min(number * READING_EVERY_S, self._gap_s)
            time.sleep(max(0.0, due_s - time.monotonic()))
            yield self._held_while_idle()

    def _leave_to_ttl(self) -> TTLTrial:
        job_id = f"verify-pin-{uuid.uuid4().hex[:12]}"
        prompt = {"role": "user", "content": USER_PROMPTS[0]}
        before = self._server.snapshot().held_blocks(self.pool)
        self._chat([*first_messages(self.pool.block_size), prompt], job_id, is_last_step=False)
        started_s = time.monotonic()
        ttl_s = self._server.job(job_id).get("ttl_left_s")
        after = at_end = self._server.snapshot().held_blocks(self.pool)
        limit_s = _TTL_MARGIN_S + (_UNTOLD_TTL_S if ttl_s is None else ttl_s)
        held_s = None
        while after > before and held_s is None and time.monotonic() - started_s < limit_s:
            time.sleep(READING_EVERY_S / 3)
            at_end = self._held_while_idle()
            held_s = time.monotonic() - started_s if at_end <= before else None
        waited_s = time.monotonic() - started_s
        self._server.release(job_id)
        return TTLTrial(before, after, at_end, ttl_s, held_s, waited_s)

    def _chat(
        self, messages: Any, job_id: str, *, is_last_step: bool
    ) -> tuple[dict[str, Any], float]:
        """The reply, and the seconds until it was there."""
        started_s, model = time.monotonic(), self.facts.model
        reply = self._server.chat(model, messages, job_id=job_id, is_last_step=is_last_step)
        latency_s = time.monotonic() - started_s
        self._num_requests += 1
        time.sleep(_SETTLE_S)
        return reply, latency_s

    def _held_while_idle(self) -> int:
        """Blocks in use while none of our requests runs: any that does is someone else's."""
        snapshot = self._server.snapshot()
        self._max_foreign_running = max(self._max_foreign_running, snapshot.num_unfinished)
        return snapshot.held_blocks(self.pool)


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
            say(f"{LEGEND}\n{HEADINGS}")
            run = experiment.run(say)
    except TurnError as error:
        print(f"the run broke off: {error}", file=sys.stderr)
        return FAILED
    checks = judge(run)
    say("\n".join([str(run.ttl_trial), "", *verdict_lines(run, checks)]))
    document = {
        "agentkv_version": agentkv.__version__,
        "passed": not any(checks.values()),
        "checks": [
            {"name": name, "passed": not problems, "problems": problems}
            for name, problems in checks.items()
        ],
        **asdict(run),
    }
    if options.json:
        print(json.dumps(document))
    return DONE if document["passed"] else FAILED


def judge(run: PinRun) -> dict[str, list[str]]:
    """What speaks against each claim, in the order in which the experiment meets them."""
    *turns, last = run.turns
    held = [run.blocks_at_start, *(row.blocks_after for row in turns)]
    traffic = []
    if run.blocks_at_start:
        traffic.append(f"{run.blocks_at_start} blocks were in use before the run began")
    if (number := run.num_foreign_requests) > 0:
        traffic.append(f"{number} other requests ran, so usage is not this job's alone")
    left = last.blocks_after - run.blocks_at_start
    return {
        "usage constant in every gap": [
            problem for row in turns if (problem := _move_in_gap(row, run.blocks_at_start))
        ],
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


def _move_in_gap(row: TurnRow, blocks_at_start: int) -> str | None:
    if row.blocks_after <= blocks_at_start:
        return f"turn {row.turn}: no block was pinned when the turn had ended"
    if set(row.gap_blocks) <= {row.blocks_after}:
        return None
    readings = ", ".join(map(str, row.gap_blocks))
    return f"turn {row.turn}: {row.blocks_after} blocks after it, then {readings}"


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
