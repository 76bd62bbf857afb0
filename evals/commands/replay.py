"""`agentkv replay`: what a server's own log would have been under stock vLLM.

SOURCE is the server's URL, the scheduler_timestamps.jsonl of its --run-output-dir (or that folder),
or the folder of a run of `agentkv bench`. The log's jobs are played twice on vLLM's
scheduler with a virtual clock, as `agentkv simulate` does: under stock, and under the server's
policy. The speed of the engine is fitted to the log's own turns.

    agentkv replay http://127.0.0.1:8000
    agentkv replay run-output --policy continuum
"""

from __future__ import annotations

import argparse
import bisect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from agentkv.command_line import DONE, add_json, command_parser, print_result
from agentkv.errors import InputError
from agentkv.integrations.vllm.watch.job_view import TurnView
from agentkv.policies.names import DEFAULT_POLICY, STOCK_POLICIES, simulated_policy

from ..event_log import Record, read_record, totals
from ..outcomes import RunOutcome, summarize
from ..traces.served import served_turns
from ..traces.turns import job_plans, jobs_among
from ..workload.plans import JobPlan, Workload

STOCK = STOCK_POLICIES[0]
MIN_TURNS = 30
"""Turns from which the speed of an engine is fitted: six a constant. Chosen."""
STOCK_RANGE = (0.79, 1.75)
"""Mean job of a replay over that of the real run, under stock: four runs on two busy cores."""
MIN_FOLLOWERS = 0.9
"""Share of the later jobs that make them N at once again, in a loop of N. Chosen."""
MAX_GAP = 0.25
"""Mean time from a job's end to the next one's begin there, in mean jobs. Chosen."""


def main(argv: Sequence[str]) -> int:
    """0: played. Raises InputError for a log that cannot be played, AgentKVServerError for a server
    without one."""
    options = _parser().parse_args(argv)
    record = read_record(options.source, api_key=options.api_key)
    document = replay(record, options)
    print_result(document, sentences(document), is_json=options.json)
    return DONE


def replay(record: Record, options: argparse.Namespace) -> dict[str, Any]:
    """Play the log under stock and under the policy; what came of it, and what really was."""
    logging.getLogger("vllm.triton_utils").setLevel(logging.ERROR)  # that it has none for CPUs
    from ..simulator.run import Simulation  # loads vLLM

    turns = _turns_of(record)
    plans = job_plans(jobs_among(served_turns(record)))
    machine = _machine(record, turns, options)
    num_at_once = at_once(plans, record)
    if num_at_once is not None:
        plans = [replace(job, arrival_s=0.0) for job in plans]
    workload = Workload("trace", 0, tuple(plans), num_at_once)
    name = options.policy or str(record.server.get("policy", DEFAULT_POLICY))
    played = []
    for policy in (simulated_policy(STOCK), simulated_policy(name)):
        run = Simulation(workload, machine, policy).run()
        outcome = RunOutcome(policy.name, {"name": "trace"}, run.jobs, run.counters, {})
        played.append(summarize(outcome))
    return {
        "source": record.source,
        "policy": name,
        "span_s": max(job.ended_s for job in record.jobs) - min(t.arrived_s for t in turns),
        "jobs": len(plans),
        "jobs_at_once": num_at_once,
        "machine": machine.as_dict(),
        "measured": {
            "mean_s": fmean(_durations_s(record)),
            "hit_rate": totals(record.jobs)["hit_rate"],
        },
        **{
            key: {each: found[each] for each in ("completed", "mean_s", "p90_s", "hit_rate")}
            for key, found in zip(("stock", "policy_run"), played, strict=True)
        },
    }


def sentences(document: Mapping[str, Any]) -> str:
    """The A/B in one sentence, and how well the replay of what really was fits."""
    stock, ours, measured = (document[name] for name in ("stock", "policy_run", "measured"))
    if not (stock["mean_s"] and ours["mean_s"]):
        return "No job was completed in the replay."
    least, most = STOCK_RANGE
    return (
        f"Your last {_span(document['span_s'])} under stock vLLM: mean job "
        f"{stock['mean_s'] / ours['mean_s']:.2f} times as long ({stock['mean_s']:.1f} s for "
        f"{ours['mean_s']:.1f} s, {document['jobs']} jobs), {_percent(stock['hit_rate'])} of later "
        f"turns' prompts from the cache in place of {_percent(ours['hit_rate'])}.\n"
        f"Both are simulated (means of runs held against real ones: {least:g} to {most:g} times "
        f"theirs under {STOCK}); under {document['policy']} it was really "
        f"{measured['mean_s']:.1f} s and {_percent(measured['hit_rate'])}."
    )


def _span(seconds: float) -> str:
    if seconds >= 5400.0:
        return f"{seconds / 3600.0:.1f} hours"
    return f"{seconds / 60.0:.0f} minutes" if seconds >= 90.0 else f"{seconds:.0f} seconds"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _turns_of(record: Record) -> list[TurnView]:
    """The turns that finished, in the order of their starts. Raises InputError."""
    if len({job.engine for job in record.jobs}) > 1:
        raise InputError(
            f"{record.source}: the log is of several engines, whose clocks differ: name the file "
            "of one of them, in the server's --run-output-dir"
        )
    turns = [turn for job in record.jobs for turn in job.turns if turn.started_s is not None]
    finished = [turn for turn in turns if turn.output_tokens is not None]
    if not finished:
        raise InputError(f"{record.source}: no turn in it that finished")
    return sorted(finished, key=lambda turn: turn.started_s or 0.0)


def _durations_s(record: Record) -> list[float]:
    """Seconds of each job, from its first turn's arrival to its last one's end."""
    found = []
    for job in record.jobs:
        ended_s = [turn.ended_s for turn in job.turns if turn.output_tokens is not None]
        if ended_s and job.parent_job_id is None:
            found.append(max(filter(None, ended_s)) - job.turns[0].arrived_s)
    return found


def at_once(plans: Sequence[JobPlan], record: Record) -> int | None:
    """Jobs at once if each begins when another ends, as a batch of agents does; None if they come
    by themselves."""
    spans = sorted(
        (job.turns[0].arrived_s, max(turn.ended_s or 0.0 for turn in job.turns))
        for job in record.jobs
        if job.turns and job.parent_job_id is None
    )
    starts_s = [started_s for started_s, _ in spans]
    ends_s = sorted(ended_s for _, ended_s in spans)
    num_first = bisect.bisect(starts_s, ends_s[0])  # those that began before any had ended
    later_s = starts_s[num_first:]
    if len(plans) < len(spans) or not later_s:
        return None
    nums_ended = [bisect.bisect(ends_s, at_s) for at_s in later_s]
    fill_up = [num_first + n + 1 - ended == num_first for n, ended in enumerate(nums_ended)]
    gap_s = fmean(max(0.0, at_s - end_s) for at_s, end_s in zip(later_s, ends_s, strict=False))
    is_soon = gap_s <= MAX_GAP * fmean(ended_s - started_s for started_s, ended_s in spans)
    return num_first if is_soon and sum(fill_up) >= MIN_FOLLOWERS * len(fill_up) else None


def _machine(record: Record, turns: Sequence[TurnView], options: argparse.Namespace) -> Any:
    """The server: its memory as the log says, its speed as the turns took it. Raises InputError."""
    from ..simulator.calibrate import fit_turns
    from ..simulator.machine import Limits, machine_of, make_machine

    said = record.server
    if None in (said.get("num_blocks"), said.get("block_size")):
        raise InputError(
            f"{record.source}: the log does not say how large the KV cache is: give the server's "
            "URL, its own file or the folder of a run"
        )
    if said.get("num_state_groups") and said["hit_tokens"] < said["block_size"]:
        raise InputError(
            f"{record.source}: no replay of hits within blocks: its server has --prefix-match-unit "
            f"{said['hit_tokens']} and blocks of {said['block_size']} tokens"
        )
    limits = Limits(
        num_blocks=said["num_blocks"] + 1,  # and the null block
        block_tokens=said["block_size"],
        max_num_seqs=said.get("max_num_seqs"),
        max_num_batched_tokens=said.get("max_num_batched_tokens"),
        max_model_tokens=said.get("max_model_len"),
        num_state_groups=said.get("num_state_groups", 0),
    )
    if options.gpu is not None:
        return make_machine(options.gpu, options.model, limits)
    if len(turns) < MIN_TURNS:
        raise InputError(
            f"{record.source}: {len(turns)} turns in it finished, which is too few to tell the "
            f"engine's speed from ({MIN_TURNS} are enough): give --gpu NAME"
        )
    return machine_of(fit_turns(turns), limits)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("replay", __doc__)
    add = parser.add_argument
    add("source", metavar="SOURCE", help="a server's URL, its event log, or the folder of a run")
    add("--policy", metavar="NAME", help="in place of the server's own policy")
    add("--gpu", metavar="NAME|FILE", help="its speed, as of `simulate`, in place of the log's")
    add("--model", metavar="NAME", help="with --gpu, as of `simulate`")
    add("--api-key", help="sent as a bearer token")
    add_json(parser)
    return parser
