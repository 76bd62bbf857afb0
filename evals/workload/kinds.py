"""Jobs that are made up, drawn to published figures, and the named workloads that they make.

A job depends on the workload's name, the seed and its number alone. studies/workloads.md has the
source of each figure. A command tells its duration only roughly, as with real ones: most fit the
duration they stand for, some do not, so that a predictor can be right often and not always.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import NormalDist

from agentkv.errors import InputError, not_among

from ..traces.logs import read_turns
from .plans import JobPlan, Prefix, Steps, TurnPlan

TOOLS = ("recorded", "longtail")
MISLEADING_SHARE = 0.1

Tool = tuple[str, float]
"""A command and its seconds."""
ToolSource = Callable[[random.Random], Tool]


@dataclass(frozen=True, slots=True)
class LogNormalDraw:
    """ln(x) is normal: the `median` of x, and the deviation `sigma` of ln(x)."""

    median: float
    sigma: float

    @classmethod
    def from_mean(cls, mean: float, deviation: float) -> LogNormalDraw:
        """From the mean and standard deviation of the values themselves."""
        variance = math.log(1.0 + (deviation / mean) ** 2)
        return cls(mean * math.exp(-variance / 2.0), math.sqrt(variance))

    @classmethod
    def from_quantiles(cls, p50: float, p90: float) -> LogNormalDraw:
        return cls(p50, math.log(p90 / p50) / NormalDist().inv_cdf(0.9))

    def draw(self, rng: random.Random) -> float:
        return self.median * math.exp(self.sigma * rng.gauss(0.0, 1.0))


LONG_TAIL_BODY, LONG_TAIL = LogNormalDraw(1.0283, 1.0209), LogNormalDraw(24.370, 0.8)
LONG_TAIL_SHARE = 0.05
"""A body and a tail of 5%, which make tools of p50 1.1 s, p90 5.3 s, p99 48 s."""

_LOOKS = (
    "cd /testbed && grep -rn 'def {word}' src",
    "cat src/{word}.py",
    "ls -la src/{word}",
    "cd /testbed && git diff src/{word}.py",
    "sed -n '40,80p' src/{word}.py",
    "find . -maxdepth 2 -name '{word}*'",
)
_RUNS = (
    "cd /testbed && python reproduce_{word}.py",
    "cd /testbed && python -c 'import {word}; print({word})'",
    "cd /testbed && python -m pytest -x tests/test_{word}.py::test_{word}",
    "cd /testbed && find / -name '{word}*'",
)
_BUILDS = (
    "cd /testbed && python -m pytest -q tests",
    "cd /testbed && python -m pytest tests/{word}",
    "pip install -e .[{word}]",
    "cd /testbed && make {word}",
)
_BASH_COMMANDS = ((0.6, _LOOKS), (4.0, _RUNS), (math.inf, _BUILDS))
"""Commands by the longest duration, in seconds, that they are for."""
_WORDS = ("parser", "model", "query", "schema", "cache", "router", "loader", "signal", "table")
_FUNCTIONS = ("get_stock_info", "book_flight", "list_files", "send_message", "search_hotels")


def bash_command(duration_s: float, rng: random.Random) -> str:
    """A bash command that plausibly takes `duration_s`."""
    usual = next(texts for limit_s, texts in _BASH_COMMANDS if duration_s <= limit_s)
    is_misleading = rng.random() < MISLEADING_SHARE
    texts = rng.choice(_BASH_COMMANDS)[1] if is_misleading else usual
    return rng.choice(texts).format(word=rng.choice(_WORDS))


def function_call(tool_s: float, rng: random.Random) -> str:
    """A function call, which tells nothing of how long it takes."""
    return f"{rng.choice(_FUNCTIONS)} --id {rng.randrange(100, 1000)}"


def tool_source(tools: str) -> ToolSource | None:
    """A function that draws a command with its time; None to keep the recorded tools.

    A recorded command says nothing of a time drawn elsewhere, so both are drawn together. Raises
    InputError for a name that is unknown and a file that cannot be used.
    """
    if tools == "recorded":
        return None
    if tools == "longtail":
        return _long_tail_tool
    path = Path(tools)
    if not path.exists():
        allowed = f"{', '.join(TOOLS)}, or the path of a trace file"
        raise InputError(f"--tools: {not_among(tools, TOOLS, allowed)}")
    try:
        turns = read_turns(path)
    except InputError as error:
        raise InputError(f"tools: {error}") from error
    pairs = [(turn.command, turn.tool_s) for turn in turns if turn.command and turn.tool_s]
    if not pairs:
        raise InputError(f"tools: {tools}: no command in it whose time is known")
    return lambda rng: rng.choice(pairs)


def _long_tail_tool(rng: random.Random) -> Tool:
    part = LONG_TAIL if rng.random() < LONG_TAIL_SHARE else LONG_TAIL_BODY
    tool_s = part.draw(rng)
    return bash_command(tool_s, rng), tool_s


def redraw_tools(job: JobPlan, draw: ToolSource, rng: random.Random) -> JobPlan:
    """The same job, and its children, with other tools; the last turn has none.

    A person's conversation has none at all, and a turn that waits for children keeps its call.
    """
    if job.role == "chat":
        return job
    redrawn = []
    for turn in job.turns[:-1]:
        if turn.children:
            children = tuple(redraw_tools(child, draw, rng) for child in turn.children)
            redrawn.append(replace(turn, children=children))
            continue
        command, tool_s = draw(rng)
        redrawn.append(replace(turn, command=command, tool_s=tool_s))
    return replace(job, turns=(*redrawn, *job.turns[-1:]))


PROMPT_TOKENS = (92, 469, 811, 1343, 1655, 2241, 2665, 2915)
OUTPUT_TOKENS = (24, 16, 12, 24, 16, 12, 64, 24)
REFERENCE_TOOLS = (
    ("ls -la", 0.050, 0.150),
    ("cat main.py", 0.050, 0.100),
    ("grep -rn TODO .", 0.050, 0.100),
    ("git status", 0.080, 0.200),
    ("python -m pytest -q", 2.0, 5.0),
    ("cat tests/test_main.py", 0.050, 0.100),
    ("git diff", 0.100, 0.300),
    ("", 0.0, 0.0),
)
"""Command, and the range of its seconds, drawn evenly."""


def reference_turns(rng: random.Random) -> tuple[TurnPlan, ...]:
    """Eight turns that read, search, test and report; only the tools' times differ by job."""
    turns = []
    context_tokens = 0
    for prompt_tokens, output_tokens, (command, low_s, high_s) in zip(
        PROMPT_TOKENS, OUTPUT_TOKENS, REFERENCE_TOOLS, strict=True
    ):
        tool_s = rng.uniform(low_s, high_s)
        turns.append(TurnPlan(prompt_tokens - context_tokens, output_tokens, command, tool_s))
        context_tokens = prompt_tokens + output_tokens
    return tuple(turns)


Count = Callable[[random.Random], int]
"""Draws a whole number from 1 on."""


def log_normal(p50: float, p90: float, most: int) -> Count:
    """A log-normal number, by median and 90% quantile, never above `most`."""
    drawn = LogNormalDraw.from_quantiles(p50, p90)
    return lambda rng: min(max(1, round(drawn.draw(rng))), most)


def normal(mean: float, deviation: float) -> Count:
    return lambda rng: max(1, round(rng.gauss(mean, deviation)))


def even(least: int, most: int) -> Count:
    """Any whole number from `least` to `most`, each as likely."""
    return lambda rng: rng.randint(least, most)


@dataclass(frozen=True, slots=True)
class JobKind:
    """Distributions of a kind of job, each drawn by itself; no tool runs longer than its limit."""

    num_turns: Count
    first_tokens: Count
    added_tokens: Count
    output_tokens: Count
    tool_times: LogNormalDraw
    command: Callable[[float, random.Random], str]
    tool_limit_s: float = math.inf

    def turns(self, rng: random.Random) -> tuple[TurnPlan, ...]:
        """The turns of one job, two or more."""
        turns = []
        for number in range(max(2, self.num_turns(rng))):
            counts = self.added_tokens if number else self.first_tokens
            added_tokens, output_tokens = counts(rng), self.output_tokens(rng)
            tool_s = min(self.tool_times.draw(rng), self.tool_limit_s)
            turns.append(TurnPlan(added_tokens, output_tokens, self.command(tool_s, rng), tool_s))
        return (*turns[:-1], turns[-1].as_last())


SWEBENCH = JobKind(
    num_turns=normal(10.9, 2.1),
    first_tokens=log_normal(1640, 2354, 4655),
    added_tokens=log_normal(92, 755, 3435),
    output_tokens=log_normal(89, 681, 2465),
    tool_times=LogNormalDraw.from_mean(0.925, 3.55),
    command=bash_command,
)

BFCL = JobKind(
    num_turns=normal(6.3, 2.3),
    first_tokens=log_normal(1500, 3000, 6000),
    added_tokens=log_normal(80, 300, 1500),
    output_tokens=log_normal(50, 120, 400),
    tool_times=LogNormalDraw.from_mean(1.923, 2.133),
    command=function_call,
)


@dataclass(frozen=True, slots=True)
class WorkloadKind:
    """A named workload: `make(seed, number)` gives a job, which arrives at 0.0."""

    make: Callable[[int, int], JobPlan]
    tools: str = "recorded"
    arrivals: str = "poisson"
    steps: Steps | None = None


def _plain(
    name: str, turns: Callable[[random.Random], tuple[TurnPlan, ...]], seed: int, number: int
) -> JobPlan:
    rng = random.Random(f"{seed} {name} {number}")
    return JobPlan(f"{name}-{number:04}", 0.0, turns(rng))


def _after(prefixes: tuple[Prefix, ...], job: JobPlan) -> JobPlan:
    """The job with prefixes before its own first tokens."""
    first, *others = job.turns
    first = replace(first, added_tokens=prefixes[-1].num_tokens + first.added_tokens)
    return replace(job, turns=(first, *others), prefixes=prefixes)


CODING_PROMPT_TOKENS = 20_000
CODING = JobKind(
    num_turns=log_normal(29, 56, 99),
    first_tokens=log_normal(400, 1500, 4000),
    added_tokens=SWEBENCH.added_tokens,
    output_tokens=SWEBENCH.output_tokens,
    # 86.46% take less than 1 s, 95.12% less than 10 s
    tool_times=LogNormalDraw(0.010403336664221044, 4.145965322514557),
    command=bash_command,
    tool_limit_s=120.0,
)


def _coding(seed: int, number: int) -> JobPlan:
    prompt = Prefix("coding", CODING_PROMPT_TOKENS)
    return _after((prompt,), _plain("coding", CODING.turns, seed, number))


LEAD_PROMPT_TOKENS, WORKER_PROMPT_TOKENS = 5_000, 2_000
FAN_OUT = even(2, 5)
"""Sub-agents at once."""
ROUNDS = even(1, 2)
"""How often the lead sends out sub-agents."""
BRIEF_TOKENS = log_normal(300, 800, 2000)
"""What the lead tells all of its sub-agents: question and plan."""
REPORT_TOKENS = log_normal(600, 1500, 3000)
"""What a sub-agent answers, and the lead."""
WORKER = JobKind(
    num_turns=even(6, 11),
    first_tokens=log_normal(100, 300, 1000),
    added_tokens=log_normal(1000, 4000, 8000),
    output_tokens=log_normal(100, 300, 1000),
    tool_times=BFCL.tool_times,
    command=function_call,
)


def _deep_research(seed: int, number: int) -> JobPlan:
    """A lead that sends out sub-agents, waits for all of their reports, and writes its own."""
    rng, job_id = random.Random(f"{seed} deep-research {number}"), f"deep-research-{number:04}"
    added_tokens = WORKER.first_tokens(rng)
    turns = []
    for round_number in range(1, 1 + ROUNDS(rng)):
        prompt = Prefix("deep-research worker", WORKER_PROMPT_TOKENS)
        brief_tokens = BRIEF_TOKENS(rng)
        brief = Prefix(f"{job_id} brief {round_number}", WORKER_PROMPT_TOKENS + brief_tokens)
        children = []
        for worker in range(1, 1 + FAN_OUT(rng)):
            *others, last = WORKER.turns(rng)
            last = replace(last, output_tokens=REPORT_TOKENS(rng))
            child_id = f"{job_id}.{round_number}.{worker}"
            child = JobPlan(child_id, 0.0, (*others, last), role="sub-agent")
            children.append(_after((prompt, brief), child))
        output_tokens = brief_tokens + sum(WORKER.output_tokens(rng) for _ in children)
        command = f"run_subagents --tasks {len(children)}"
        turns.append(TurnPlan(added_tokens, output_tokens, command, 0.0, children=tuple(children)))
        added_tokens = sum(child.turns[-1].output_tokens for child in children)
    turns.append(TurnPlan(added_tokens, REPORT_TOKENS(rng), "", 0.0))
    prompt = Prefix("deep-research lead", LEAD_PROMPT_TOKENS)
    return _after((prompt,), JobPlan(job_id, 0.0, tuple(turns)))


CHAT = JobKind(
    num_turns=normal(4.45, 1.96),
    first_tokens=log_normal(114, 331, 1024),
    added_tokens=log_normal(114, 331, 1024),
    output_tokens=log_normal(239, 695, 2048),
    tool_times=LogNormalDraw.from_mean(28.6, 15.6),
    command=lambda _think_s, _rng: "",
)
"""Messages of a person, and the seconds before each."""
CHAT_SHARE = 0.5
"""Conversations among the jobs of `mixed`."""


def _mixed(seed: int, number: int) -> JobPlan:
    """A person's conversation, or an agent's job as in `swebench`."""
    rng = random.Random(f"{seed} mixed {number}")
    if rng.random() >= CHAT_SHARE:
        return JobPlan(f"mixed-{number:04}", 0.0, SWEBENCH.turns(rng))
    turns = [replace(turn, tool_s=0.0, pause_s=turn.tool_s) for turn in CHAT.turns(rng)]
    return JobPlan(f"chat-{number:04}", 0.0, tuple(turns), role="chat")


GROUP_SAMPLES = 8
"""Samples of one prompt."""
ROLLOUT = replace(CODING, first_tokens=SWEBENCH.first_tokens)


def _rollout(seed: int, number: int) -> JobPlan:
    """One sample of a group, which has its whole prompt in common."""
    group, sample = divmod(number, GROUP_SAMPLES)
    prompt_tokens = ROLLOUT.first_tokens(random.Random(f"{seed} rollouts group {group}"))
    first, *others = ROLLOUT.turns(random.Random(f"{seed} rollouts {number}"))
    turns = (replace(first, added_tokens=prompt_tokens), *others)
    prompt = Prefix(f"rollouts group {group}", prompt_tokens)
    return JobPlan(f"rollouts-{group:04}.{sample + 1}", 0.0, turns, (prompt,), role="sample")


_SWEBENCH = WorkloadKind(partial(_plain, "swebench", SWEBENCH.turns))

KINDS = {
    "reference": WorkloadKind(partial(_plain, "reference", reference_turns)),
    "swebench": _SWEBENCH,
    "longtail": replace(_SWEBENCH, tools="longtail"),
    "bfcl": WorkloadKind(partial(_plain, "bfcl", BFCL.turns)),
    "deep-research": WorkloadKind(_deep_research),
    "coding": WorkloadKind(_coding),
    "mixed": WorkloadKind(_mixed),
    "rollouts": WorkloadKind(_rollout, steps="synchronous"),
    "partial-rollouts": WorkloadKind(_rollout, steps="partial"),
    "burst": replace(_SWEBENCH, arrivals="burst"),
}
