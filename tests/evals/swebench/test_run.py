"""Facts about runs of the suite in bubblewrap, on a server that plays the solutions."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentkv import cli
from agentkv.evals.swebench import command
from agentkv.evals.swebench.folder import finished, read_run
from agentkv.evals.swebench.instances import SwebenchError
from agentkv.evals.swebench.run import RunPlan, run
from agentkv.evals.swebench.suite import commands, completion
from tests.agents.mini_swe_replies import fenced
from tests.evals.swebench.run_folders import GOLD, SUITE, trajectory
from tests.scripted_server import ScriptedReply, ScriptedServer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("bubblewrap")]
LIMIT_S = 180.0
# each instance takes two seconds before its agent starts, so that a run has a middle
SLOWLY = ("--workers", "1", "--slice", ":3", "--config", "run.env_startup_command=sleep 2")
Whole = tuple[RunPlan, dict[str, Any], ScriptedServer]


def solution_server(solution: str) -> ScriptedServer:
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
    return replace(plan, **fields)


@pytest.fixture
def plan(server: ScriptedServer, tmp_path: Path) -> RunPlan:
    return plan_of(server, tmp_path / "run")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    """A run of all six, its document, and the server of its own."""
    with solution_server("gold") as server:
        plan = plan_of(server, tmp_path_factory.mktemp("whole") / "run")
        yield plan, run(plan), server


def over(out: Path) -> dict[str, str]:
    """How each instance of a run ended; nothing before the run has begun."""
    if not (out / "run.json").exists():
        return {}
    return {name: one.exit_status for name, one in read_run(out).instances.items()}


def test_every_instance_hands_in_the_solution(whole: Whole) -> None:
    """The patches are those that the agents' commands made; every turn of every job is tagged."""
    plan, document, server = whole
    assert document["exit_statuses"] == {"Submitted": 6}
    assert document["ended_early"] is None
    found = read_run(plan.out).instances
    assert {name: one.patch for name, one in found.items()} == GOLD
    predictions = json.loads((plan.out / "agents" / "preds.json").read_text())
    assert {name: entry["model_patch"] for name, entry in predictions.items()} == GOLD
    for name, one in found.items():
        assert one.job.job_id.startswith(f"{name}.")
        assert [turn.turn for turn in one.job.turns] == [0, 1, 2, 3]
        assert all(turn.latency_s > 0 and turn.tool_s > 0 for turn in one.job.turns)
        assert one.job.turns[0].prompt_tokens > 100
        assert one.job.parts["other_s"] >= 0
    job_ids = {one.job.job_id for one in found.values()}
    tags = {(turn.tags["job_id"], turn.tags["turn"]) for turn in server.turns}
    assert tags == {(job_id, turn) for job_id in job_ids for turn in (1, 2, 3, 4)}
    assert set(server.released) == job_ids
    assert len([event for _, event in server.tool_events if event["state"] == "finished"]) == 24


def test_a_run_folder_tells_how_it_was_made(whole: Whole) -> None:
    """run.json has every condition, trajectories are mini-swe-agent's, and a resume adds none."""
    plan, result, _ = whole
    assert run(replace(plan, base_url="http://127.0.0.1:9/v1"), resume=True) == result
    document = json.loads((plan.out / "run.json").read_text())
    assert document["instance_ids"] == list(GOLD)
    assert (document["policy"], document["model"]) == ("scripted", "scripted-gold")
    assert document["workers"] == 3
    assert document["server"]["policy"] == "scripted"
    assert document["versions"]["mini-swe-agent"].startswith("2.")
    name = SUITE[0]["instance_id"]
    saved = json.loads((plan.out / "agents" / name / f"{name}.traj.json").read_text())
    assert saved["trajectory_format"].startswith("mini-swe-agent-1")
    assert SUITE[0]["problem_statement"].strip() in saved["messages"][1]["content"]


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"workers": 5}, {"resume": True}, "another workers: 3, now 5"),
        ({"instances": SUITE[:2]}, {"resume": True}, "another dataset_sha256"),
        ({"is_text": True}, {"resume": True}, "another is_text"),
        ({}, {}, r"run.json exists.*--resume"),
    ],
)
def test_a_run_is_resumed_under_its_own_conditions_only(
    whole: Whole, changes: dict[str, Any], options: dict[str, bool], words: str
) -> None:
    """Other flags than at the beginning are refused, and so is a run that is not asked for."""
    with pytest.raises(SwebenchError, match=words):
        run(replace(whole[0], **changes), **options)


def test_a_relative_folder_and_text_mode_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sandbox finds a relative --out, fenced text gives the same patch, the key is not kept."""
    monkeypatch.chdir(tmp_path)
    instance, out = SUITE[0], Path("runs/ours")
    replies = [fenced(text) for text in commands(instance, "gold")]
    with ScriptedServer(replies, model="text", api_key="secret") as server:
        plan = plan_of(server, out, instances=[instance], is_text=True, api_key="secret")
        plan = replace(plan, configs=["agent.step_limit=4"])
        assert run(plan)["exit_statuses"] == {"Submitted": 1}
    assert server.turns[-1].tags["is_last_step"]
    assert read_run(out).instances[instance["instance_id"]].patch == instance["patch"]
    files = [path for path in out.rglob("*") if path.is_file()]
    assert not [path for path in files if b"secret" in path.read_bytes()]


def test_a_failed_instance_is_tried_again(plan: RunPlan) -> None:
    """Its error is its own; --resume plays it alone again, but on no other model."""
    broken = {**SUITE[1], "base_commit": "0" * 40}
    plan = replace(plan, instances=[SUITE[0], broken])
    document = run(plan)
    assert document["exit_statuses"] == {"Submitted": 1, "error:SwebenchError": 1}
    assert "Could not parse object" in document["errors"][broken["instance_id"]]
    kept = read_run(plan.out).instances[SUITE[0]["instance_id"]]
    before = (plan.out / "run.json").read_text()
    with (
        solution_server("wrong") as another,
        pytest.raises(SwebenchError, match="model: 'scripted-gold', now 'scripted-wrong'"),
    ):
        run(replace(plan, base_url=another.base_url), resume=True)
    assert (plan.out / "run.json").read_text() == before
    (plan.out / "eval.json").write_text("{}")
    path = plan.out / "agents" / broken["instance_id"] / f"{broken['instance_id']}.traj.json"
    played_ns = path.stat().st_mtime_ns
    run(plan, resume=True)
    assert path.stat().st_mtime_ns > played_ns
    assert not (plan.out / "eval.json").exists(), "its verdicts are of other patches"
    assert read_run(plan.out).instances[SUITE[0]["instance_id"]] == kept


def test_the_command_names_bad_usage_and_says_how_agents_ended(
    plan: RunPlan, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another policy than the server's leaves nothing behind; what is printed is for people."""
    arguments = ["--base-url", str(plan.base_url), "--out", str(plan.out), "--slice", ":1"]
    assert cli.main(["swebench", "run", *arguments, "--policy", "continuum"]) == 2
    assert "the server runs 'scripted'" in capsys.readouterr().err
    assert not (plan.out / "run.json").exists()
    assert command.main(["run", *arguments]) == 0
    text = capsys.readouterr().out.splitlines()
    assert text == ["1 of 1 instances over: 1 Submitted", f"in {plan.out}"]


def begun(base_url: str, out: Path, *more: str) -> subprocess.Popen[str]:
    """Start a slow run in a process of its own, which listens to SIGINT."""
    program = [sys.executable, "-m", "agentkv.cli", "swebench", "run", "--base-url", base_url]
    return subprocess.Popen(
        [*program, "--out", str(out), "--json", *SLOWLY, *more],
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


@pytest.mark.parametrize("cause", [signal.SIGKILL, signal.SIGINT, "server gone"], ids=str)
def test_an_interrupted_run_keeps_what_is_finished(
    tmp_path: Path, cause: signal.Signals | str
) -> None:
    """A signal or the server's end gives status 1 and the reason; --resume plays the rest once."""
    out = tmp_path / "run"
    with solution_server("gold") as server:
        process = begun(server.base_url, out)
        wait_until(lambda: over(out))
        if isinstance(cause, signal.Signals):
            process.send_signal(cause)
            printed, said = process.communicate(timeout=LIMIT_S)
    if cause == "server gone":
        printed, said = process.communicate(timeout=LIMIT_S)
    kept = over(out)
    assert 1 <= len(kept) < 3
    if cause is signal.SIGKILL:
        wait_until(lambda: not batches_at(out))
        with solution_server("gold") as server:
            printed, said = begun(server.base_url, out, "--resume").communicate(timeout=LIMIT_S)
        assert json.loads(printed)["exit_statuses"] == {"Submitted": 3}, said
        assert len(server.turns) == 4 * (3 - len(kept))
        return
    assert process.returncode == 1, said
    document = json.loads(printed)
    reason = server.base_url.removesuffix("/v1") if cause == "server gone" else "interrupted"
    assert reason in document["ended_early"]
    assert document["over"] == len(kept)
    assert not batches_at(out)


def batches_at(out: Path) -> list[Path]:
    """Processes whose command line names the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(out).encode() in path.read_bytes():
                found.append(path)
        except OSError:  # it has ended
            continue
    return found


@pytest.mark.parametrize(
    ("content", "is_over", "is_settled"),
    [
        (trajectory("p"), True, True),
        (trajectory("", exception_str="", exit_status="OSError"), True, False),
        (trajectory("", exception_str="x", exit_status="ContextWindowExceededError"), True, True),
        ({"info": {"exit_status": "Submitted", "submission": "p"}}, False, False),
        ('{"info": {"exit_st', False, False),
    ],
    ids=["ended", "failed", "too long", "another's", "cut"],
)
def test_only_whole_trajectories_of_the_run_count(
    tmp_path: Path, content: object, is_over: bool, is_settled: bool
) -> None:
    """An error around the agent may pass, so --resume tries again; a full context does not."""
    path = tmp_path / "agents" / "a-1" / "a-1.traj.json"
    path.parent.mkdir(parents=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    found = finished(tmp_path, ["a-1", "a-2"])
    assert list(found) == ["a-1"] * is_over
    assert [one.is_settled for one in found.values()] == [is_settled] * is_over


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
