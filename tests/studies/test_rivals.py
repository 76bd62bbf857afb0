"""Rivals next to `agentkv bench`: what the command line says of them and their requests carry."""

from __future__ import annotations

import json

import pytest

from agentkv.errors import InputError
from agentkv.evals.player.run import LoadOptions, load_server
from agentkv.evals.workload.workloads import make_workload
from studies.rivals import Rival, context_of, read_rivals
from tests.evals.fake_vllm import FakeVllm


@pytest.mark.parametrize(
    ("flags", "proxies", "expected"),
    [
        ([], [], []),
        (["a=--max-num-seqs 4"], [], [Rival("a", ("--max-num-seqs", "4"))]),
        (["a=--x '{\"b\": 1}'"], [], [Rival("a", ("--x", '{"b": 1}'))]),
        (["plain="], [], [Rival("plain")]),
        (["a=--scheduler-cls json.JSONEncoder"], [], None),
        ([], ["b=sh {server} {port}"], [Rival("b", (), ("sh", "{server}", "{port}"))]),
        (
            ["b=--y=1"],
            ["b=sh {server}:{port}"],
            [Rival("b", ("--y=1",), ("sh", "{server}:{port}"))],
        ),
    ],
    ids=["none", "flags", "quoted", "no-flags", "class", "proxy", "both"],
)
def test_a_rival_is_a_name_with_flags_or_a_command(
    flags: list[str], proxies: list[str], expected: list[Rival] | None
) -> None:
    """Words are split as a shell does; flags and a proxy of one name are one rival."""
    found = read_rivals(flags, proxies)
    assert expected is None or found == expected


@pytest.mark.parametrize(
    ("flags", "proxies", "problem"),
    [
        (["agentinfer"], [], "write NAME=WORDS"),
        (["agentkv=--x"], [], "a name of its own"),
        (["a=--scheduler-cls nowhere_to_be_found.Class"], [], "pip install .*nowhere_to_be_found"),
        ([], ["a=sh {server}"], "needs {server} and {port}"),
        ([], ["router=no-such-router {server} {port}"], "no command 'no-such-router'"),
    ],
)
def test_a_rival_that_cannot_run_is_refused_before_the_first_server(
    flags: list[str], proxies: list[str], problem: str
) -> None:
    """The error shows what was seen, and what to write or to install."""
    with pytest.raises(InputError, match=problem):
        read_rivals(flags, proxies)


def test_the_turns_of_a_rival_name_its_programs() -> None:
    """Each turn has the job's id in `agentic_context`; its last turn expects no other."""
    workload = make_workload("reference", num_jobs=2, seed=0, jps=100.0, max_turns=3)
    with FakeVllm() as server, FakeVllm() as proxy:
        options = LoadOptions(
            server.base_url,
            name="theirs",
            request_fields=context_of,
            turns_url=proxy.base_url.removesuffix("/v1"),
        )
        run, reason = load_server(workload, {}, options)
    assert (reason, run.policy, len(run.jobs)) == (None, "theirs", 2)
    assert server.requests == []
    contexts = [json.loads(turn["vllm_xargs"]["agentic_context"]) for turn in proxy.requests]
    programs = {context["program_id"] for context in contexts}
    assert {name.partition("-")[2] for name in programs} == {job.job_id for job in workload.jobs}
    for job in workload.jobs:
        ofjob = [one for one in contexts if one["program_id"].endswith(f"-{job.job_id}")]
        assert [one["expected_resume"] for one in ofjob] == [True] * (len(job.turns) - 1) + [False]
