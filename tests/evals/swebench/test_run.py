"""Facts about a run: instances played against a server that knows the solutions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentkv.evals.swebench import command
from agentkv.evals.swebench.instances import SwebenchError
from agentkv.evals.swebench.run import RunPlan, _sum, run
from agentkv.evals.swebench.suite import Solution, commands, completion
from tests.agents.mini_swe_replies import fenced
from tests.evals.swebench.run_folders import SUITE, gold_patches
from tests.scripted_server import ScriptedReply, ScriptedServer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("bubblewrap")]
GOLD = gold_patches()
LIMIT_S = 90.0
# each instance takes two seconds before its agent starts, so that a run has a middle
SLOWLY = ("--workers", "1", "--slice", ":3", "--config", "run.env_startup_command=sleep 2")
Whole = tuple[RunPlan, dict[str, Any], ScriptedServer]


def solution_server(solution: Solution) -> ScriptedServer:
    """The suite's solutions on a server that has the plugin's routes, and notes tags."""

    def reply(body: Any) -> ScriptedReply:
        made = completion(SUITE, solution, body["messages"])
        counts = made["usage"]["prompt_tokens"], None, made["usage"]["completion_tokens"]
        calls = made["choices"][0]["message"]["tool_calls"]
        return ScriptedReply("THOUGHT: next.", *counts, tool_calls=calls)

    return ScriptedServer(reply, model=f"scripted-{solution}")


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with solution_server("gold") as running:
        yield running


def plan_of(server: ScriptedServer, out: Path, **fields: Any) -> RunPlan:
    """A run of the suite in bubblewrap, three instances at a time."""
    plan = RunPlan(dataset="demo", instances=SUITE, out=out, base_url=server.base_url, workers=3)
    return replace(plan, **{"environment": "bubblewrap", **fields})


@pytest.fixture
def plan(server: ScriptedServer, tmp_path: Path) -> RunPlan:
    return plan_of(server, tmp_path / "run")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    """A run of all six, its document, and the server of its own."""
    with solution_server("gold") as server:
        plan = plan_of(server, tmp_path_factory.mktemp("whole") / "run", step_limit=30)
        yield plan, run(plan), server


def rows(out: Path) -> list[dict[str, Any]]:
    path = out / "instances.jsonl"
    lines = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def patches(out: Path) -> dict[str, str]:
    found = json.loads((out / "preds.json").read_text())
    return {name: entry["model_patch"] for name, entry in found.items()}


def test_every_instance_hands_in_the_solution(whole: Whole) -> None:
    """The patches are those that the agents' commands made; every turn of every job is tagged."""
    plan, document, server = whole
    assert document["exit_statuses"] == {"Submitted": 6}
    assert document["ended_early"] is None
    assert patches(plan.out) == GOLD
    for row in rows(plan.out):
        assert row["job_id"] == f"{row['instance_id']}.{document['run_id']}"
        assert row["num_turns"] == len(row["turns"]) == 4
        spent_s = sum(turn["llm_s"] + turn["tool_s"] for turn in row["turns"])
        assert 0.0 <= row["start_s"] < row["start_s"] + spent_s < row["end_s"]
        assert row["turns"][0]["command"] == "git status --short && ls"
        assert row["turns"][0]["prompt_tokens"] > 100
    job_ids = {row["job_id"] for row in rows(plan.out)}
    tags = {(turn.tags["job_id"], turn.tags["turn"]) for turn in server.turns}
    assert tags == {(job_id, turn) for job_id in job_ids for turn in (1, 2, 3, 4)}
    assert set(server.released) == job_ids


def test_a_run_folder_tells_how_it_was_made(whole: Whole) -> None:
    """run.json has every condition, trajectories are mini-swe-agent's, and a resume adds none."""
    plan, result, _ = whole
    assert run(replace(plan, base_url="http://127.0.0.1:9/v1"), resume=True) == result
    document = json.loads((plan.out / "run.json").read_text())
    assert document["instance_ids"] == list(GOLD)
    assert (document["policy"], document["model"]) == ("scripted", "scripted-gold")
    assert (document["workers"], document["step_limit"]) == (3, 30)
    assert document["environment"] == "bubblewrap"
    assert document["started_at"] < document["ended_at"]
    assert document["server"]["policy"] == "scripted"
    assert document["versions"]["mini-swe-agent"].startswith("2.")
    name = SUITE[0]["instance_id"]
    saved = json.loads((plan.out / name / f"{name}.traj.json").read_text())
    assert saved["trajectory_format"].startswith("mini-swe-agent-1")
    assert saved["info"]["exit_status"] == "Submitted"
    assert SUITE[0]["problem_statement"].strip() in saved["messages"][1]["content"]
    files = {"run.json", "instances.jsonl", "preds.json", "repositories", ".lock"}
    assert {path.name for path in plan.out.iterdir()} - {"agents.log"} == files | set(GOLD)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"step_limit": 5}, "another step_limit: 30, now 5"),
        ({"instances": SUITE[:2]}, "another dataset_sha256"),
        ({"environment": "podman"}, "another environment"),
    ],
)
def test_a_run_is_resumed_under_its_own_conditions_only(
    whole: Whole, changes: dict[str, Any], words: str
) -> None:
    """Other flags than at the beginning are refused."""
    with pytest.raises(SwebenchError, match=words):
        run(replace(whole[0], **changes), resume=True)


def test_a_run_is_not_resumed_on_another_model(plan: RunPlan) -> None:
    """A server with another model is refused, and run.json stays as it was."""
    plan = replace(plan, instances=SUITE[:1], configs=["run.env_startup_command=exit 1"])
    run(plan)
    before = (plan.out / "run.json").read_text()
    with (
        solution_server("wrong") as another,
        pytest.raises(SwebenchError, match="model: 'scripted-gold', now 'scripted-wrong'"),
    ):
        run(replace(plan, base_url=another.base_url), resume=True)
    assert (plan.out / "run.json").read_text() == before


def test_a_relative_folder_and_text_mode_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sandbox finds a relative --out, fenced text gives the same patch, the key is not kept."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()  # a folder of this name is not the dataset
    instance, out = SUITE[0], Path("runs/ours")
    replies = [fenced(text) for text in commands(instance, "gold")]
    with ScriptedServer(replies, model="text", api_key="secret") as server:
        plan = plan_of(server, out, instances=[instance], step_limit=4, is_text=True)
        plan = replace(plan, api_key="secret")
        assert run(plan)["exit_statuses"] == {"Submitted": 1}
    assert patches(out) == {instance["instance_id"]: instance["patch"]}
    assert json.loads((out / "run.json").read_text())["dataset"] == "demo"
    files = [path for path in out.rglob("*") if path.is_file() and ".git" not in path.parts]
    assert not [path for path in files if b"secret" in path.read_bytes()]


def test_a_failed_instance_is_tried_again(plan: RunPlan) -> None:
    """Its error is in its row alone, and --resume plays it again under another job id."""
    broken = {**SUITE[1], "base_commit": "0" * 40}
    plan = replace(plan, instances=[SUITE[0], broken, SUITE[2]])
    document = run(plan)
    assert document["exit_statuses"] == {"Submitted": 2, "error:SwebenchError": 1}
    assert "not our ref" in document["errors"][broken["instance_id"]]
    run(plan, resume=True)
    failed = [row for row in rows(plan.out) if row["exit_status"] == "error:SwebenchError"]
    assert [row["instance_id"] for row in failed] == [broken["instance_id"]] * 2
    assert failed[1]["job_id"] == f"{failed[0]['job_id']}.2"
    assert len(rows(plan.out)) == 4


def test_an_instance_named_like_a_file_of_the_run_is_refused(plan: RunPlan) -> None:
    """An instance must not be named run.json or eval, as its folder lies next to those."""
    odd = {**SUITE[0], "instance_id": "eval"}
    with pytest.raises(SwebenchError, match="'eval' is the name of a file"):
        run(replace(plan, instances=[odd]))


def test_the_command_names_bad_usage_and_says_how_agents_ended(
    plan: RunPlan, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another policy than the server's leaves nothing behind; what is printed is for people."""
    arguments = ["--base-url", str(plan.base_url), "--out", str(plan.out), "--slice", ":1"]
    assert command.main(["run", *arguments, "--policy", "continuum"]) == 2
    assert "the server runs 'scripted'" in capsys.readouterr().err
    assert not (plan.out / "run.json").exists()
    assert command.main(["run", *arguments]) == 0
    text = capsys.readouterr().out.splitlines()
    assert text == ["1 of 1 instances over: 1 Submitted", f"in {plan.out}"]


@pytest.mark.parametrize(
    ("earlier", "added"),
    [
        (None, {"pins_total": {"fast": 4, "slow": 1}, "preemptions_total": 4}),
        (
            {"pins_total": {"fast": 1}},
            {"pins_total": {"fast": 5, "slow": 1}, "preemptions_total": 4},
        ),
    ],
    ids=["one session", "resumed"],
)
def test_only_what_the_run_added_counts(earlier: Any, added: Any) -> None:
    """What the server had counted before is subtracted, and sessions of a run add up."""
    before = {"pins_total": {"fast": 2}, "preemptions_total": 5}
    after = {"pins_total": {"fast": 6, "slow": 1}, "preemptions_total": 9}
    assert _sum(earlier, _sum(after, before, -1)) == added


def in_process(base_url: str, out: Path, *more: str) -> list[str]:
    program = [sys.executable, "-m", "agentkv.cli", "swebench", "run", "--base-url", base_url]
    return [*program, "--out", str(out), "--json", *SLOWLY, *more]


def begun(base_url: str, out: Path) -> subprocess.Popen[str]:
    """Start a slow run in a process of its own, which listens to SIGINT."""
    return subprocess.Popen(
        in_process(base_url, out),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env={**os.environ, "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1"},
    )


def wait_until(condition: Callable[[], object]) -> None:
    """Poll for what another process does, which cannot be awaited."""
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "the other process does not get there"
        time.sleep(0.05)


def test_a_killed_run_is_gone_on_with(server: ScriptedServer, tmp_path: Path) -> None:
    """After kill -9 the finished rows stay, and --resume plays the rest once."""
    out = tmp_path / "run"
    process = begun(server.base_url, out)
    wait_until(lambda: rows(out))
    process.kill()
    process.communicate()
    kept = rows(out)
    assert 1 <= len(kept) < 3
    arguments = in_process(server.base_url, out, "--resume")
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["over"] == len(rows(out)) == 3
    assert rows(out)[: len(kept)] == kept
    assert {row["exit_status"] for row in rows(out)} == {"Submitted"}
    assert patches(out) == dict(list(GOLD.items())[:3])
    document = json.loads((out / "run.json").read_text())
    assert document["ended_at"] is not None
    assert document["sessions"] == 2
    assert not (out / "worktrees").exists()


@pytest.mark.parametrize("cause", [signal.SIGINT, signal.SIGTERM, "server gone"])
def test_an_interrupted_run_ends_in_order(tmp_path: Path, cause: signal.Signals | str) -> None:
    """A signal or the server's end gives status 1, the reason, and finished instances alone."""
    out = tmp_path / "run"
    with solution_server("gold") as server:
        process = begun(server.base_url, out)
        wait_until(lambda: rows(out))
        if isinstance(cause, signal.Signals):
            process.send_signal(cause)
            printed, said = process.communicate(timeout=LIMIT_S)
    if cause == "server gone":
        printed, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1, said
    document = json.loads(printed)
    reason = server.base_url.removesuffix("/v1") if cause == "server gone" else "interrupted"
    assert reason in document["ended_early"]
    assert document["over"] == len(rows(out)) < 3
    assert set(patches(out)) == {row["instance_id"] for row in rows(out)}


def test_an_interrupt_waits_for_agents_and_a_second_one_does_not(tmp_path: Path) -> None:
    """Agents that wait for their server's answer are then abandoned, and leave nothing behind."""
    out = tmp_path / "run"
    asked, answer_now = threading.Event(), threading.Event()

    def hang(body: Any) -> None:
        asked.set()
        answer_now.wait(LIMIT_S)

    with ScriptedServer(hang, model="hanging") as server:
        process = begun(server.base_url, out)
        assert asked.wait(LIMIT_S)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert any("Ctrl-C again" in line for line in process.stderr)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2.0)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=LIMIT_S)
        answer_now.set()
    assert json.loads(printed)["ended_early"] == "interrupted"
    assert rows(out) == []
    assert not (out / "worktrees").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize(("solution", "counts"), [("gold", (6, 0)), ("wrong", (0, 6))])
def test_solutions_decide_what_is_resolved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], solution: str, counts: tuple[int, int]
) -> None:
    """Right solutions make all tests pass; wrong ones fail what they should mend, and no more."""
    flags = ["demo", "--model", f"scripted:{solution}", "--out", str(tmp_path / "run"), "--json"]
    assert command.main(flags) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["resolved"], document["unresolved"]) == counts
    assert document["mode"] == "daemon-less"
    results = json.loads((tmp_path / "run" / "eval.json").read_text())["results"]
    for instance in SUITE:
        tests = json.loads(json.dumps(instance["FAIL_TO_PASS"]))
        failed = f"{len(tests)} of {len(tests)} FAIL_TO_PASS fail, first {tests[0]}"
        assert "b/tests/" not in instance["patch"]
        detail = results[instance["instance_id"]]["detail"]
        assert detail == ("" if solution == "gold" else failed)
