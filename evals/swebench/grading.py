"""Grades the patches of a run with the official harness, and keeps a verdict for each instance.

With docker `swebench`'s own evaluation runs as a process in a folder of its own. Without a daemon
the suite's eval scripts run in bubblewrap with our Python; the harness's code grades their logs.
Both leave the harness's files, from which the verdicts are read.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from agentkv.agents.sandbox import find_bubblewrap

from ..rows import provenance, write_whole
from .environments import REPOSITORIES, WORKTREES, prepare_suite, start_environment
from .folder import EVAL_FILE, EVAL_FOLDER, SwebenchRun, read_object, read_run
from .instances import (
    DAEMON_LESS,
    SANDBOX,
    TIME_LIMIT_S,
    HarnessError,
    Instance,
    SwebenchError,
    fingerprint,
    load_instances,
)

STATUSES = ("resolved", "unresolved", "empty", "error")
Verdict = tuple[str, str]
"""One of STATUSES, and the reason for every one but the first."""
_SAME = ("mode", "harness_version", "dataset_sha256")
"""What earlier verdicts must have in common with those of now to be kept."""
_APPLY_LIMIT_S = 120
_MAX_REASON_CHARS = 300
_NOT_APPLIED = ">>>>> Patch Apply Failed:"


def evaluate(
    folder: Path,
    *,
    mode: str,
    dataset: str | None = None,
    workers: int = 1,
    time_limit_s: int = TIME_LIMIT_S,
    is_redone: bool = False,
) -> dict[str, Any]:
    """Grade what has no verdict yet, and return the counts; every instance of the run gets one.

    Raises SwebenchError if no container or sandbox can be had, which keeps all earlier verdicts,
    and HarnessError if the harness as a whole fails. An interrupt keeps the verdicts so far.
    """
    run = read_run(folder)
    found = load_instances(dataset or str(run.document.get("dataset")))
    instances = {one["instance_id"]: one for one in found if one["instance_id"] in run.instance_ids}
    facts = {
        "mode": mode,
        "harness_version": version("swebench"),
        "dataset_sha256": fingerprint(list(instances.values())),
        **{"run_id": run.run_id, "policy": run.policy, **provenance("swebench", "docker")},
    }
    home = folder / EVAL_FOLDER / mode
    # Source: swebench 5.0.2, harness/run_evaluation.py, run_instance
    logs = home / "logs" / "run_evaluation" / run.run_id / run.policy.replace("/", "__")
    settled = {name: _settled(run, name, instances.get(name)) for name in run.instance_ids}
    if None in settled.values():
        _require(mode)
    before = read_object(folder / EVAL_FILE)
    if is_redone or (before and any(before.get(name) != facts[name] for name in _SAME)):
        shutil.rmtree(home, ignore_errors=True)
    to_grade = [
        instances[name]
        for name, verdict in settled.items()
        if verdict is None and not _is_graded(logs / name, run.patch(name))
    ]
    print(f"{len(to_grade)} patches to grade ({mode})", file=sys.stderr)
    results: dict[str, dict[str, str]] = {}
    try:
        if to_grade and mode == DAEMON_LESS:
            _run_in_sandboxes(run, to_grade, logs, workers, time_limit_s)
        elif to_grade:
            _run_in_containers(run, to_grade, home, workers, time_limit_s)
    finally:
        for name, known in settled.items():
            if (verdict := known or _verdict(name, logs / name)) is not None:
                digest = patch_sha256(run.patch(name))
                entry = {"status": verdict[0], "detail": verdict[1], "patch_sha256": digest}
                results[name] = entry
        write_whole(folder / EVAL_FILE, json.dumps({**facts, "results": results}, indent=1) + "\n")
    counts = Counter(entry["status"] for entry in results.values())
    return {
        "instances": len(run.instance_ids),
        **{status: counts[status] for status in STATUSES},
        **{"policy": run.policy, "mode": mode, "run": str(folder)},
    }


def patch_sha256(patch: str) -> str:
    """Return what tells one patch from another in `eval.json`."""
    return hashlib.sha256(patch.encode(errors="surrogatepass")).hexdigest()


def _require(mode: str) -> None:
    """Raise SwebenchError, which says what to do, unless tests can run in this mode."""
    if mode == DAEMON_LESS:
        if find_bubblewrap() is None:
            raise SwebenchError("no bubblewrap that works here: tests never run outside a sandbox")
        return
    said = "no such command"
    with suppress(FileNotFoundError):  # the harness calls the command, too
        done = subprocess.run(["docker", "version"], capture_output=True, text=True)
        if not done.returncode:
            return
        said = done.stderr.strip().rpartition("\n")[2]
    advice = f"start one, or use --mode {DAEMON_LESS} for the instances of the demo"
    raise SwebenchError(f"no docker daemon answers ({said}): {advice}")


def _settled(run: SwebenchRun, name: str, instance: Instance | None) -> Verdict | None:
    """Return the verdict that needs no tests; None if the patch has to be graded."""
    from swebench.harness.utils import make_test_spec

    if instance is None:
        return "error", "the dataset lacks this instance"
    row = run.rows.get(name, {})
    if not row and name not in run.predictions:
        return "error", "not run: the run ended before it came to this instance"
    if not run.patch(name).strip():
        if row.get("error"):
            return "error", f"the agent failed: {row['error']}"
        return "empty", f"no patch; the agent ended with {row.get('exit_status')}"
    try:  # what the harness cannot read would end its batch
        has_goal = bool(make_test_spec({"image": None, **instance}).FAIL_TO_PASS)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        return "error", f"the harness cannot read the instance: {type(error).__name__}: {error}"
    # the harness would count it as resolved: compute_fail_to_pass of an empty list is 1
    reason = "the instance has no FAIL_TO_PASS tests: nothing can show that it is resolved"
    return None if has_goal else ("error", reason)


def _is_graded(logs: Path, patch: str) -> bool:
    """Return whether the harness's report is of this patch; removes another one's files.

    The harness would take a report from there by run id and policy, not by patch.
    """
    with suppress(OSError):
        graded = (logs / "patch.diff").read_bytes() == patch.encode(errors="surrogatepass")
        if graded and (logs / "report.json").exists():
            return True
    shutil.rmtree(logs, ignore_errors=True)
    return False


def _run_in_containers(
    run: SwebenchRun, instances: Sequence[Instance], home: Path, workers: int, time_limit_s: int
) -> None:
    """Run `swebench.harness.run_evaluation`; an interrupt ends it and removes its containers."""
    home.mkdir(parents=True, exist_ok=True)
    harness = [sys.executable, "-m", "swebench.harness.run_evaluation", "--run_id", run.run_id]
    harness += ["--max_workers", str(workers), "--timeout", str(time_limit_s)]
    for flag, name, content in (
        ("--dataset_name", "instances.json", list(instances)),
        ("--predictions_path", "predictions.json", [_prediction(run, one) for one in instances]),
    ):
        (home / name).write_text(json.dumps(content), encoding="utf-8")
        harness += [flag, name]
    # as it writes below its folder; on Ctrl-C it would wait for what runs
    process = subprocess.Popen(harness, cwd=home, stdout=sys.stderr, start_new_session=True)
    try:
        status = process.wait()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        remove = [sys.executable, "-m", "swebench.harness.remove_containers"]
        subprocess.run([*remove, "--run_id", run.run_id], capture_output=True)
        raise
    if status:
        raise HarnessError(f"the harness ended with status {status}: see above, and {home}")


def _run_in_sandboxes(
    run: SwebenchRun, instances: Sequence[Instance], logs: Path, workers: int, time_limit_s: int
) -> None:
    """Grade each instance in a sandbox; what is under way ends with this process."""
    home = run.folder / EVAL_FOLDER / DAEMON_LESS
    prepare_suite(home / REPOSITORIES)

    def grade(instance: Instance) -> str:
        name: str = instance["instance_id"]
        (logs / name).mkdir(parents=True, exist_ok=True)
        try:
            error = _grade(instance, _prediction(run, instance), logs / name, home, time_limit_s)
        except Exception as raised:  # by the harness, for an odd field, log or half of a character
            error = f"{type(raised).__name__}: {raised}"
        if error is not None:
            (logs / name / "run_instance.log").write_text(error, errors="replace")
        return name

    pool = ThreadPoolExecutor(workers)
    try:
        pending = [pool.submit(grade, instance) for instance in instances]
        for number, done in enumerate(as_completed(pending), start=1):
            print(f"[{number}/{len(instances)}] {done.result()}", file=sys.stderr)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        shutil.rmtree(home / WORKTREES, ignore_errors=True)


def _grade(
    instance: Instance, prediction: dict[str, str], logs: Path, home: Path, time_limit_s: int
) -> str | None:
    """Apply the patch, run the eval script, grade its log; return why there is no report.

    Source: swebench 5.0.2, harness/run_evaluation.py, run_instance.
    """
    from swebench.harness.grading import get_eval_report
    from swebench.harness.run_evaluation import GIT_APPLY_CMDS
    from swebench.harness.utils import make_test_spec

    spec = make_test_spec({"image": None, **instance})
    sandbox = start_environment(SANDBOX, home, {}, instance)
    files = {"patch.diff": prediction["model_patch"], "eval.sh": spec.eval_script}
    # both before anything of the model's runs, and could put a link in their place
    for name, text in files.items():
        for folder in (Path(sandbox.config.cwd).with_name("tmp"), logs):
            (folder / name).write_text(text, encoding="utf-8", newline="")
    for attempt in GIT_APPLY_CMDS:
        command = f"git checkout -- . ; git clean -fdq; {attempt} /tmp/patch.diff"
        applied = sandbox.execute({"command": command}, timeout=_APPLY_LIMIT_S)
        if applied["returncode"] == 0:
            break
    else:
        return f"{_NOT_APPLIED}\n{applied['output']}"
    tested = sandbox.execute({"command": "bash /tmp/eval.sh"}, timeout=time_limit_s)
    if "TimeoutExpired" in tested.get("extra", {}).values():  # in the harness's words
        return f"Test timed out after {time_limit_s} seconds."
    log_path = logs / "test_output.txt"
    log_path.write_text(tested["output"], encoding="utf-8", newline="")
    report = get_eval_report(spec, prediction, str(log_path), include_tests_status=True)
    (logs / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    return None


def _prediction(run: SwebenchRun, instance: Instance) -> dict[str, str]:
    name = instance["instance_id"]
    return {
        "model_name_or_path": run.policy,
        "instance_id": name,
        "model_patch": run.patch(name),
    }


def _verdict(name: str, logs: Path) -> Verdict | None:
    """Read what the harness left of an instance; None if that is nothing."""
    if (report := read_object(logs / "report.json").get(name)) is not None:
        return _verdict_of(report)
    if not (log := logs / "run_instance.log").exists():
        return None
    text = log.read_text(errors="replace")
    if _NOT_APPLIED in text:
        # from where it failed on: git begins with where it looked
        said = f"the patch does not apply: {text.partition(_NOT_APPLIED)[2]}"
    else:
        errors = [line for line in text.splitlines() if "Error" in line or "timed out" in line]
        said = (errors or text.splitlines() or [""])[-1]
        said = said.rpartition(f"Error in evaluation for {name}: ")[2]
    return "error", " ".join(said.split())[:_MAX_REASON_CHARS]


def _verdict_of(report: Mapping[str, Any]) -> Verdict:
    if report["resolved"]:
        return "resolved", ""
    if not report["patch_successfully_applied"]:
        reason = report.get("infra_failure_reason")
        return "unresolved", f"no readable test output{f' ({reason})' if reason else ''}"
    failures = []
    for kind, tests in report.get("tests_status", {}).items():
        if kind in ("FAIL_TO_PASS", "PASS_TO_PASS") and (failed := tests["failure"]):
            total = len(failed) + len(tests["success"])
            failures.append(f"{len(failed)} of {total} {kind} fail, first {failed[0]}")
    return "unresolved", "; ".join(failures) or "tests fail"
