"""Clients of one simulated server: what the greedy one's load costs another."""

from __future__ import annotations

from statistics import fmean

import pytest

from agentkv.evals.workload.plans import deal_jobs

from .simulated import durations, machine, random_jobs, simulate

LOADS = {"heavy": 10.0, "light": 1.0}


@pytest.mark.parametrize("policy", ["agentkv", "continuum:paper"])
def test_while_memory_suffices_clients_change_nothing(policy: str) -> None:
    """In a roomy pool jobs of two clients take as long as those of one."""
    workload = random_jobs(30, seed=2)
    roomy = machine(2000)
    _, one = simulate(workload, policy, roomy)
    _, two = simulate(deal_jobs(workload, LOADS), policy, roomy)
    assert durations(one) == durations(two)


def means_s(policy: str) -> dict[str, float]:
    """Mean duration of each client's jobs, in a pool that a tenth of the jobs fill."""
    workload = deal_jobs(random_jobs(110, seed=2), LOADS)
    _, run = simulate(workload, policy, machine(150))
    clients: dict[str, list[float]] = {"heavy": [], "light": []}
    for job in run.jobs:
        clients[job.client].append(job.duration_s)
    return {client: fmean(found) for client, found in clients.items()}


def test_a_light_client_pays_little_for_a_greedy_one() -> None:
    """Its jobs take less than half as long as under stock, and with more weight no longer."""
    stock, ours = means_s("fcfs"), means_s("agentkv")
    weighted = means_s('agentkv{"client_weights": {"light": 4}}')
    assert ours["light"] < 0.5 * stock["light"]
    assert weighted["light"] <= ours["light"]
