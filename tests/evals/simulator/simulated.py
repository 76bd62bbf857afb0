"""Small workloads and machines for the simulator's tests."""

import random
from typing import Any

from agentkv.evals.simulator.machine import Limits, Machine, make_machine
from agentkv.evals.simulator.plan import RunOptions
from agentkv.evals.simulator.run import SimulatedRun, Simulation
from agentkv.evals.workload.plans import JobPlan, TurnPlan, Workload
from agentkv.policies.names import simulated_policy

COMMANDS = ("ls", "cat a.py", "pytest -q", "git status", "make all")


def job(job_id: str, arrival_s: float, *turns: tuple[int, int, float]) -> JobPlan:
    """A job of (added tokens, output tokens, tool seconds) a turn; the last tool is none."""
    plans = [
        TurnPlan(added, output, COMMANDS[index % len(COMMANDS)], tool_s)
        for index, (added, output, tool_s) in enumerate(turns)
    ]
    last = plans[-1]
    plans[-1] = TurnPlan(last.added_tokens, last.output_tokens, "", 0.0)
    return JobPlan(job_id, arrival_s, tuple(plans))


def random_jobs(num_jobs: int, *, seed: int = 0, span_s: float = 5.0) -> Workload:
    """Jobs of one to six turns with tools from nothing to seconds, in order of arrival."""
    chance = random.Random(seed)
    jobs = [
        job(
            f"job-{number}",
            chance.uniform(0.0, span_s),
            *(
                (
                    chance.randint(1, 400),
                    chance.randint(1, 60),
                    chance.choice((0.0, 0.05, 0.4, 3.0)),
                )
                for _ in range(chance.randint(1, 6))
            ),
        )
        for number in range(num_jobs)
    ]
    return Workload("random", seed, tuple(sorted(jobs, key=lambda plan: plan.arrival_s)), None)


def machine(num_blocks: int = 200, **limits: Any) -> Machine:
    """An RTX 5090 with Llama-3.1-8B and a pool of this size."""
    return make_machine("rtx-5090", "llama-3.1-8b", Limits(num_blocks=num_blocks, **limits))


def simulate(
    workload: Workload, policy: str, on: Machine | None = None, **options: Any
) -> tuple[Simulation, SimulatedRun]:
    """The run, and the simulation as it was left."""
    simulation = Simulation(
        workload, on or machine(), simulated_policy(policy), RunOptions(**options)
    )
    return simulation, simulation.run()


def durations(run: SimulatedRun) -> dict[str, float]:
    return {job.job_id: job.duration_s for job in run.jobs}
