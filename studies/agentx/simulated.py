"""`python studies/agentx/simulated.py FOLDER --gpu PROFILE`: AgentX traces in virtual time.

Sessions of a folder in the Weka format loop, `--concurrency` at once. Each session and each
sub-agent has an id of its own and names no parent; nobody reports tools or releases a job.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkv.evals.simulator.agents import Agents
from agentkv.evals.simulator.machine import Limits, make_machine
from agentkv.evals.simulator.plan import RunOptions
from agentkv.evals.simulator.run import Simulation
from agentkv.evals.workload.plans import JobPlan, TurnPlan, Workload
from agentkv.policies.names import simulated_policy
from agentkv.protocol import Tags

Request = Mapping[str, Any]


class AgentsWithIds(Agents):
    """Clients that send a job's id with each request, and nothing else."""

    def _tags(self, job: Any) -> dict[str, Any]:
        return Tags(job_id=job.plan.job_id).as_fields()

    def _report_tool(self, job: Any, event: Any) -> None:
        pass


def turns(
    requests: Sequence[Request], children: Mapping[int, list[JobPlan]]
) -> tuple[TurnPlan, ...]:
    """The turns of a session; what follows a reply is a pause, since no call can be read in it."""
    made, context_tokens = [], 0
    for number, one in enumerate(requests):
        is_last = number + 1 == len(requests)
        made.append(
            TurnPlan(
                added_tokens=max(1, one["in"] - context_tokens),
                output_tokens=one["out"],
                command="",
                tool_s=0.0,
                pause_s=0.0 if is_last else requests[number + 1]["think_time"],
                children=tuple(children.get(number, ())),
            )
        )
        context_tokens = max(context_tokens, one["in"]) + one["out"]
    return tuple(made)


def session(name: str, rows: Sequence[Request]) -> JobPlan:
    """A session, which waits for the sub-agents that it starts after a reply."""
    own = [row for row in rows if "in" in row]
    children: defaultdict[int, list[JobPlan]] = defaultdict(list)
    number = -1
    for row in rows:
        number += "in" in row
        if row.get("type") == "subagent":
            start_s = max(0.0, row["t"] - own[number]["t"] - own[number]["api_time"])
            child = turns(row["requests"], {})
            children[number].append(
                JobPlan(f"{name}/{row['agent_id']}", start_s, child, role="sub-agent")
            )
    return JobPlan(name, 0.0, turns(own, children))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--blocks", type=int, default=95)
    parser.add_argument("--concurrency", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--policy", action="append")
    options = parser.parse_args()
    rows = [
        json.loads(path.read_text())["requests"] for path in sorted(options.traces.glob("*.json"))
    ]
    jobs = [session(f"s{number}", rows[number % len(rows)]) for number in range(options.jobs)]
    limits = Limits(
        num_blocks=options.blocks,
        block_tokens=32,
        max_num_seqs=8,
        max_num_batched_tokens=2048,
        max_model_tokens=2240,
    )
    machine = make_machine(options.gpu, "smollm2-135m", limits)
    workload = Workload("agentx", 0, tuple(jobs), options.concurrency)
    for policy in options.policy or ["fcfs", "continuum:released", "agentkv"]:
        simulation = Simulation(workload, machine, simulated_policy(policy), RunOptions())
        simulation._agents.__class__ = AgentsWithIds
        # nor does a client say that a job is over
        engine = simulation.engine
        engine.signal = lambda op, key, *args, now_s, engine=engine: engine.reach(now_s)  # type: ignore[method-assign]
        result = simulation.run()
        played = [
            turn for job in result.jobs for turn in job.turns if turn.first_token_s is not None
        ]
        ttft_s = sorted(turn.first_token_s - turn.sent_s for turn in played if turn.first_token_s)
        found = {
            "policy": policy,
            "ttft_mean_s": round(statistics.mean(ttft_s), 2),
            "ttft_p99_s": round(ttft_s[int(0.99 * len(ttft_s))], 2),
            "hit_rate": round(
                sum(turn.cached_tokens for turn in played)
                / sum(turn.prompt_tokens for turn in played),
                3,
            ),
            "ended_s": round(max(job.ended_s for job in result.jobs)),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
