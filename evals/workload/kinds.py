"""Workloads by name: the jobs of each, and how they arrive where nothing else is said.

A job depends on the workload's name, the seed and its number alone. Each figure has its source, or
is "chosen"; studies/workloads.md has them in one table.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from .jobs import (
    BFCL,
    SWEBENCH,
    Counts,
    EvenCounts,
    JobKind,
    LogNormalDraw,
    NormalCounts,
    bash_command,
    function_call,
    reference_turns,
)
from .plans import JobPlan, Prefix, Steps, TurnPlan


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
"""System prompt and tools. Chosen near the 19,000 tokens that a proxy saw Claude Code send with
each request (hpfreilabs.com/blog/anatomy-of-claude-code-session)."""
CODING = JobKind(
    num_turns=Counts(29, 56, 99),
    first_tokens=Counts(400, 1500, 4000),
    added_tokens=SWEBENCH.added_tokens,
    output_tokens=SWEBENCH.output_tokens,
    tool_times=LogNormalDraw.through((0.8646, 1.0), (0.9512, 10.0)),
    command=bash_command,
    tool_limit_s=120.0,
)
"""Turns: recorded coding agents, p50 29, p90 56, at most 99 (NVIDIA-NeMo/RL pull request 3663).
Tools: of 32 coding jobs' gaps 86.46% were under 1 s and 95.12% under 10 s (vllm-project/router
issue 285); cut at 120 s, the limit of a command in verl-project/uni-agent's example. Tokens of a
turn: as SWEBENCH. Tokens of the task: chosen."""


def _coding(seed: int, number: int) -> JobPlan:
    prompt = Prefix("coding", CODING_PROMPT_TOKENS)
    return _after((prompt,), _plain("coding", CODING.turns, seed, number))


LEAD_PROMPT_TOKENS, WORKER_PROMPT_TOKENS = 5_000, 2_000
"""Source: the prompts of research agents that Anthropic published (anthropics/claude-cookbooks,
patterns/agents/prompts), 23,081 and 9,101 characters, at 4.5 a token; tools not counted."""
FAN_OUT = EvenCounts(2, 5)
"""Sub-agents at once. Source: the same prompts, 2 to 3 for a standard question, 3 to 5 for a medium
one."""
ROUNDS = EvenCounts(1, 2)
"""How often the lead sends out sub-agents. Chosen."""
BRIEF_TOKENS = Counts(300, 800, 2000)
"""What the lead tells all of its sub-agents: question and plan. Chosen."""
REPORT_TOKENS = Counts(600, 1500, 3000)
"""What a sub-agent answers, and the lead. Chosen."""
WORKER = JobKind(
    num_turns=EvenCounts(6, 11),
    first_tokens=Counts(100, 300, 1000),
    added_tokens=Counts(1000, 4000, 8000),
    output_tokens=Counts(100, 300, 1000),
    tool_times=BFCL.tool_times,
    command=function_call,
)
"""Turns: five tool calls at least and up to ten (the same prompts), one a turn, and the report.
Tools: as BFCL. Tokens of a task, a search result or page, and a call: chosen."""


def _deep_research(seed: int, number: int) -> JobPlan:
    """A lead that sends out sub-agents, waits for all of their reports, and writes its own."""
    rng, job_id = random.Random(f"{seed} deep-research {number}"), f"deep-research-{number:04}"
    added_tokens = WORKER.first_tokens.draw(rng)
    turns = []
    for round_number in range(1, 1 + ROUNDS.draw(rng)):
        prompt = Prefix("deep-research worker", WORKER_PROMPT_TOKENS)
        brief_tokens = BRIEF_TOKENS.draw(rng)
        brief = Prefix(f"{job_id} brief {round_number}", WORKER_PROMPT_TOKENS + brief_tokens)
        children = []
        for worker in range(1, 1 + FAN_OUT.draw(rng)):
            *others, last = WORKER.turns(rng)
            last = replace(last, output_tokens=REPORT_TOKENS.draw(rng))
            child_id = f"{job_id}.{round_number}.{worker}"
            child = JobPlan(child_id, 0.0, (*others, last), role="sub-agent")
            children.append(_after((prompt, brief), child))
        output_tokens = brief_tokens + sum(WORKER.output_tokens.draw(rng) for _ in children)
        command = f"run_subagents --tasks {len(children)}"
        turns.append(TurnPlan(added_tokens, output_tokens, command, 0.0, children=tuple(children)))
        added_tokens = sum(child.turns[-1].output_tokens for child in children)
    turns.append(TurnPlan(added_tokens, REPORT_TOKENS.draw(rng), "", 0.0))
    prompt = Prefix("deep-research lead", LEAD_PROMPT_TOKENS)
    return _after((prompt,), JobPlan(job_id, 0.0, tuple(turns)))


CHAT = JobKind(
    num_turns=NormalCounts(4.45, 1.96),
    first_tokens=Counts(114, 331, 1024),
    added_tokens=Counts(114, 331, 1024),
    output_tokens=Counts(239, 695, 2048),
    tool_times=LogNormalDraw.from_mean(28.6, 15.6),
    command=lambda _think_s, _rng: "",
)
"""Messages of a person, and the seconds before each: 4.45+-1.96 and 28.6+-15.6 s, the chat of
InferCept (arXiv 2402.01869, table 1). Tokens: means of 161 and 338, ShareGPT's in the paper on vLLM
(arXiv 2309.06180, figure 11); deviations as large as the means, and the cuts, are chosen."""
CHAT_SHARE = 0.5
"""Conversations among the jobs of `mixed`. Chosen."""


def _mixed(seed: int, number: int) -> JobPlan:
    """A person's conversation, or an agent's job as in `swebench`."""
    rng = random.Random(f"{seed} mixed {number}")
    if rng.random() >= CHAT_SHARE:
        return JobPlan(f"mixed-{number:04}", 0.0, SWEBENCH.turns(rng))
    turns = [replace(turn, tool_s=0.0, pause_s=turn.tool_s) for turn in CHAT.turns(rng)]
    return JobPlan(f"chat-{number:04}", 0.0, tuple(turns), role="chat")


GROUP_SAMPLES = 8
"""Samples of one prompt. Source: verl-project/uni-agent's quick start, 8 of each of 32 prompts."""
ROLLOUT = replace(CODING, first_tokens=SWEBENCH.first_tokens)
"""Turns, tools and tokens as CODING, whose sources are agents in training for the most part; the
prompt as SWEBENCH."""


def _rollout(seed: int, number: int) -> JobPlan:
    """One sample of a group, which has its whole prompt in common."""
    group, sample = divmod(number, GROUP_SAMPLES)
    prompt_tokens = ROLLOUT.first_tokens.draw(random.Random(f"{seed} rollouts group {group}"))
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
