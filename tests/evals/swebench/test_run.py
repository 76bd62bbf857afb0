"""Facts about a run: instances played against a server that knows the solutions."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentkv.agents.sandbox import find_bubblewrap
from agentkv.evals.swebench import run_command
from agentkv.evals.swebench.errors import SwebenchError
from agentkv.evals.swebench.instances import load_instances
from agentkv.evals.swebench.run import run
from agentkv.evals.swebench.run_plan import RunPlan
from agentkv.evals.swebench.scripted_server import SolutionServer
from agentkv.protocol import WIRE_VERSION
from agentkv.testing import ScriptedReply
from agentkv.testing.http_front import Answer, HttpFront
from agentkv.testing.reply_bodies import json_body

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_bubblewrap() is None, reason="no bubblewrap works here"),
]
SUITE = tuple(load_instances("demo"))


@pytest.fixture(scope="module")
def server() -> Iterator[SolutionServer]:
    with SolutionServer(SUITE, "gold") as running:
        yield running


@pytest.fixture
def plan(server: SolutionServer, tmp_path: Path) -> RunPlan:
    return RunPlan(
        source="demo",
        instances=SUITE,
        out=tmp_path / "run",
        base_url=server.base_url,
        num_workers=3,
        environment="bubblewrap",
    )


def rows(plan: RunPlan) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (plan.out / "instances.jsonl").read_text().splitlines()]


def patches(plan: RunPlan) -> dict[str, str]:
    found = json.loads((plan.out / "preds.json").read_text())
    return {name: entry["model_patch"] for name, entry in found.items()}


@pytest.fixture(scope="module")
def whole(
    server: SolutionServer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunPlan, dict[str, Any]]:
    """A run of all six, looked at by several tests."""
    plan = RunPlan(
        source="demo",
        instances=SUITE,
        out=tmp_path_factory.mktemp("whole") / "run",
        base_url=server.base_url,
        num_workers=3,
        environment="bubblewrap",
        step_limit=30,
    )
    return plan, run(plan)


def test_every_instance_hands_in_the_solution(whole: tuple[RunPlan, dict[str, Any]]) -> None:
    """The patch that comes out is the one that the agent's commands made."""
    plan, document = whole
    assert document["exit_statuses"] == {"Submitted": 6}
    assert document["ended_early"] is None
    assert patches(plan) == {one.instance_id: one.patch for one in SUITE}


def test_a_row_tells_times_and_turns(whole: tuple[RunPlan, dict[str, Any]]) -> None:
    """Of the run and of each turn, with its command and tokens."""
    plan, document = whole
    for row in rows(plan):
        assert row["job_id"] == f"{row['instance_id']}.{document['run_id']}"
        assert row["num_turns"] == len(row["turns"]) == 4
        spent_s = sum(turn["llm_s"] + turn["tool_s"] for turn in row["turns"])
        assert 0.0 <= row["start_s"] < row["start_s"] + spent_s < row["end_s"]
        assert row["turns"][0]["command"] == "git status --short && ls"
        assert row["turns"][0]["prompt_tokens"] > 100


def test_run_json_tells_how_it_was_made(whole: tuple[RunPlan, dict[str, Any]]) -> None:
    """Everything that a comparison of runs asks for."""
    plan, _ = whole
    document = json.loads((plan.out / "run.json").read_text())
    assert document["instance_ids"] == [one.instance_id for one in SUITE]
    assert (document["policy"], document["model"]) == ("scripted", "scripted-gold")
    assert (document["workers"], document["jps"], document["step_limit"]) == (3, None, 30)
    assert document["environment"] == "bubblewrap"
    assert document["started_at"] < document["ended_at"]
    assert document["server"]["policy"] == "scripted"
    assert document["versions"]["mini-swe-agent"].startswith("2.")


def test_trajectories_are_mini_swe_agents(whole: tuple[RunPlan, dict[str, Any]]) -> None:
    """Its inspector reads them."""
    plan, _ = whole
    path = plan.out / "trajectories" / f"{SUITE[0].instance_id}.traj.json"
    saved = json.loads(path.read_text())
    assert saved["trajectory_format"].startswith("mini-swe-agent-1")
    assert saved["info"]["exit_status"] == "Submitted"
    assert SUITE[0].problem_statement.strip() in saved["messages"][1]["content"]


def test_nothing_but_the_run_is_left(whole: tuple[RunPlan, dict[str, Any]]) -> None:
    """No worktree, no partial file."""
    plan, _ = whole
    names = {path.name for path in plan.out.iterdir()} - {"agents.log"}
    kept = {"run.json", "instances.jsonl", "preds.json", "trajectories", "repositories", ".lock"}
    assert names == kept


def test_resuming_a_whole_run_plays_nothing(whole: tuple[RunPlan, dict[str, Any]]) -> None:
    """And gives the same result, without a server."""
    plan, document = whole
    assert run(replace(plan, base_url="http://127.0.0.1:9/v1"), resume=True) == document
    assert len(rows(plan)) == 6


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"step_limit": 5}, "another step_limit: 30, now 5"),
        ({"instances": SUITE[:2]}, "another dataset_sha256"),
        ({"environment": "local"}, "another environment"),
        ({"jps": 1.0, "num_workers": None}, "another workers"),
    ],
)
def test_a_run_is_gone_on_with_as_it_began(
    whole: tuple[RunPlan, dict[str, Any]], changes: dict[str, Any], told: str
) -> None:
    """One run is one set of conditions."""
    with pytest.raises(SwebenchError, match=told):
        run(replace(whole[0], **changes), resume=True)


def test_a_run_is_not_gone_on_with_by_another_model(plan: RunPlan) -> None:
    """The server chose the model: one that has another would make half of a run under its name."""
    fails = ("run.env_startup_command=exit 1",)
    plan = replace(plan, instances=SUITE[:1], configs=fails)
    run(plan)
    before = (plan.out / "run.json").read_text()
    with (
        SolutionServer(SUITE, "wrong") as another,
        pytest.raises(SwebenchError, match="'scripted-gold', and the server has 'scripted-wrong'"),
    ):
        run(replace(plan, base_url=another.base_url), resume=True)
    assert (plan.out / "run.json").read_text() == before


def test_a_relative_folder_will_do(
    plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the README: the agent's commands run all the same."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()  # no dataset, for all its name
    plan = replace(plan, instances=SUITE[:1], out=Path("runs/ours"), step_limit=4)
    assert run(plan)["exit_statuses"] == {"Submitted": 1}
    assert patches(plan) == {SUITE[0].instance_id: SUITE[0].patch}
    assert json.loads((plan.out / "run.json").read_text())["dataset"] == "demo"


def test_text_mode_hands_in_the_solution_too(plan: RunPlan) -> None:
    """With the model class and the prompts for fenced commands."""
    plan = replace(plan, instances=SUITE[:2], is_text=True)
    assert run(plan)["exit_statuses"] == {"Submitted": 2}
    assert patches(plan) == {one.instance_id: one.patch for one in SUITE[:2]}


def test_instances_start_at_random_with_jps(plan: RunPlan) -> None:
    """However many are at work: an open loop."""
    from agentkv.evals.workload.plans import arrival_times_s

    plan = replace(plan, num_workers=None, jps=5.0, seed=3)
    assert run(plan)["exit_statuses"] == {"Submitted": 6}
    started_s = sorted(row["start_s"] for row in rows(plan))
    drawn_s = arrival_times_s("poisson", seed=3, jps=5.0, num_jobs=6, duration_s=None)
    lags_s = [started - drawn for started, drawn in zip(started_s, drawn_s, strict=True)]
    assert all(lag_s >= 0.0 for lag_s in lags_s)
    assert max(lags_s) < 2.0


def test_the_step_limit_ends_an_instance(plan: RunPlan) -> None:
    """With the status that mini-swe-agent gives it, and an empty patch."""
    plan = replace(plan, instances=SUITE[:1], step_limit=2)
    assert run(plan)["exit_statuses"] == {"LimitsExceeded": 1}
    assert patches(plan) == {SUITE[0].instance_id: ""}


def test_a_failed_instance_stops_nothing(plan: RunPlan, tmp_path: Path) -> None:
    """Its error is in its row, in the result, and in no other instance."""
    broken = replace(SUITE[1], base_commit="0" * 40)
    plan = replace(plan, instances=(SUITE[0], broken, SUITE[2]))
    document = run(plan)
    assert document["exit_statuses"] == {"Submitted": 2, "error:SwebenchError": 1}
    assert "not our ref" in document["errors"][broken.instance_id]


def test_a_failed_instance_is_tried_again(plan: RunPlan) -> None:
    """What was wrong may be right by then; its job has another id."""
    fails_for_one = ("run.env_startup_command=test -e /testbed/intervals",)
    plan = replace(plan, instances=SUITE[1:3], configs=fails_for_one)
    run(plan)
    run(plan, resume=True)
    by_status = [(row["instance_id"], row["exit_status"], row["job_id"]) for row in rows(plan)]
    failed = [entry for entry in by_status if entry[1] == "error:RuntimeError"]
    assert [entry[0] for entry in failed] == [SUITE[1].instance_id] * 2
    assert failed[1][2] == f"{failed[0][2]}.2"
    assert len(by_status) == 3


def test_an_image_that_cannot_be_had_is_the_instances_error(
    plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on to the next."""
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\necho 'no such image' >&2\nexit 125\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    document = run(replace(plan, instances=SUITE[:2], environment="docker"))
    assert document["over"] == 2
    assert all("no such image" in error for error in document["errors"].values())


def test_tags_reach_the_server(plan: RunPlan) -> None:
    """One job per instance, its turns counted, its end told."""
    seen: list[tuple[str, Any]] = []
    submit = {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}
    call = {"id": "c", "type": "function"}
    call["function"] = {"name": "bash", "arguments": json.dumps(submit)}  # type: ignore[assignment]

    def answer(method: str, path: str, headers: Any, body: Any) -> Answer:
        seen.append((path, body))
        if path == "/v1/chat/completions":
            return Answer(200, json_body(path, ScriptedReply(tool_calls=[call])))
        facts = {"wire_version": WIRE_VERSION, "policy": "continuum", "data": [{"id": "m"}]}
        return Answer(200, facts)

    front = HttpFront(answer)
    front.start()
    try:
        document = run(replace(plan, instances=SUITE[:1], base_url=f"{front.url}/v1"))
    finally:
        front.stop()
    job_id = f"{SUITE[0].instance_id}.{document['run_id']}"
    (turn,) = [body for path, body in seen if path == "/v1/chat/completions"]
    assert (turn["job_id"], turn["turn"]) == (job_id, 1)
    assert f"/v1/agentkv/jobs/{job_id}/release" in [path for path, _ in seen]


def test_a_policy_that_the_server_does_not_run(
    plan: RunPlan, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad usage, and nothing is written that would stand in the way."""
    arguments = ["--base-url", str(plan.base_url), "--policy", "continuum", "--out", str(plan.out)]
    assert run_command.main(arguments) == 2
    assert "the server runs 'scripted'" in capsys.readouterr().err
    assert not (plan.out / "run.json").exists()


def test_the_command_prints_one_document_last(
    plan: RunPlan, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the text for a person; nothing of mini-swe-agent's on standard output."""
    arguments = ["--base-url", str(plan.base_url), "--out", str(plan.out), "--slice", ":1"]
    assert run_command.main(arguments) == 0
    *text, last = capsys.readouterr().out.splitlines()
    assert json.loads(last)["exit_statuses"] == {"Submitted": 1}
    assert text == ["1 of 1 instances over: 1 Submitted", f"in {plan.out}"]
