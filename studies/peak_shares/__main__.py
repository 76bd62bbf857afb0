"""How far the simulated gains hang on the shares of a card's peaks that a server is said to reach.

Plays the jobs and the pool of `studies.gpu.compare` under each policy, with the roofline's rates
changed and nothing else, and prints a line of JSON a run: mean seconds of a job, and that over
stock's under the same shares and seed.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from statistics import fmean

from agentkv.evals.simulator.catalog import ACHIEVED
from agentkv.evals.simulator.cost import Roofline
from agentkv.evals.simulator.machine import Limits, Machine, make_machine
from agentkv.evals.simulator.run import Simulation
from agentkv.evals.workload.workloads import make_workload
from agentkv.policies.names import simulated_policy

from ..gpu.compare import NUM_BLOCKS

POLICIES = ("fcfs", "continuum:released", "agentkv")
SHARES = ((0.80, 0.70), (0.60, 0.60), (0.60, 0.85), (0.85, 0.60), (0.85, 0.85))
"""Of the peak bandwidth and of the peak FLOP: first what the simulator assumes."""


def with_shares(machine: Machine, bandwidth: float, compute: float) -> Machine:
    """The machine with other shares of its card's peaks."""
    cost = machine.cost
    assert isinstance(cost, Roofline)
    bytes_per_s = cost.bytes_per_s * bandwidth / ACHIEVED.bandwidth_share
    flop_per_s = cost.flop_per_s * compute / ACHIEVED.compute_share
    return replace(machine, cost=replace(cost, bytes_per_s=bytes_per_s, flop_per_s=flop_per_s))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", default="h100", help="a card of the catalog (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    card = make_machine(options.gpu, None, Limits(num_blocks=NUM_BLOCKS))
    for seed in range(options.seeds):
        workload = make_workload(
            "swebench",
            seed=seed,
            num_jobs=options.jobs,
            concurrency=20,
            max_turns=20,
            max_context_tokens=32_000,
        )
        for bandwidth, compute in SHARES:
            machine = with_shares(card, bandwidth, compute)
            stock_s = 0.0
            for policy in POLICIES:
                jobs = Simulation(workload, machine, simulated_policy(policy)).run().jobs
                mean_s = fmean(job.ended_s - job.arrived_s for job in jobs)
                stock_s = stock_s or mean_s
                row = {"gpu": options.gpu, "seed": seed, "bandwidth": bandwidth}
                row |= {"compute": compute, "policy": policy, "mean_s": round(mean_s, 2)}
                print(json.dumps(row | {"ratio": round(mean_s / stock_s, 3)}), flush=True)


if __name__ == "__main__":
    main()
