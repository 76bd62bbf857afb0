"""Grades the patches of a run, and keeps a verdict for each instance in `eval.json`.

With docker SWE-bench's own evaluation runs as a process. The suite's eval scripts can run in
bubblewrap, too; the harness's code grades their logs. Both leave the harness's files in `eval`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from agentkv.errors import RunError

from ..rows import write_whole
from .folder import EVAL_FILE, INSTANCES_FILE, SwebenchRun, read_run
from .instances import DAEMON_LESS, Instance
from .suite import sandbox_settings, working_bubblewrap

STATUSES = ("resolved", "unresolved", "empty", "error")
Verdict = tuple[str, str]
"""One of STATUSES, and the reason for every one but the first."""
_HARNESS_RUN = "agentkv"
_PATCH, _REPORT, _LOG = "patch.diff", "report.json", "run_instance.log"
"""Files that the harness leaves of an instance."""
_APPLY_LIMIT_S = 120


def evaluate(
    folder: Path, *, mode: str = "docker", workers: int = 1, time_limit_s: int = 1800
) -> dict[str, Any]:
    """Grade what has no report yet, and return the counts; every instance gets a verdict.

    Raises SwebenchError without a sandbox, and RunError if the harness as a whole fails. An
    interrupt keeps the verdicts so far.
    """
    run = read_run(folder)
    rows = json.loads((folder / INSTANCES_FILE).read_text(encoding="utf-8"))
    home = folder.resolve() / "eval" / mode
    # Source: swebench 5.0.2, harness/run_evaluation.py, run_instance
    logs = home / "logs" / "run_evaluation" / _HARNESS_RUN / run.policy.replace("/", "__")
    settled = {row["instance_id"]: _settled(run, row["instance_id"]) for row in rows}
    left = [row for row in rows if settled[row["instance_id"]] is None]
    left = [row for row in left if not _is_graded(run, row["instance_id"], logs)]
    if left and mode == DAEMON_LESS:
        working_bubblewrap()
    print(f"{len(left)} patches to grade ({mode})", file=sys.stderr)
    try:
        if left and mode == DAEMON_LESS:
            _run_in_sandboxes(run, left, logs, time_limit_s)
        elif left:
            _run_in_containers(run, left, home, workers, time_limit_s)
    finally:
        results: dict[str, dict[str, str]] = {}
        for name, known in settled.items():
            if (verdict := known or _verdict(name, logs / name)) is not None:
                results[name] = {"status": verdict[0], "detail": verdict[1]}
        facts = {"mode": mode, "harness_version": version("swebench"), "results": results}
        write_whole(folder / EVAL_FILE, json.dumps(facts, indent=1) + "\n")
    counts = Counter(entry["status"] for entry in results.values())
    return {
        "instances": len(settled),
        **{status: counts[status] for status in STATUSES},
        **{"policy": run.policy, "mode": mode, "run": str(folder)},
    }


def _settled(run: SwebenchRun, name: str) -> Verdict | None:
    """Return the verdict that needs no tests; None if the patch has to be graded."""
    one = run.instances.get(name)
    if one is None:
        return "error", "not run: the run ended before it came to this instance"
    if one.patch.strip():
        return None
    if one.error is not None:
        return "error", f"the agent failed: {one.error}"
    return "empty", f"no patch; the agent ended with {one.exit_status}"


def _is_graded(run: SwebenchRun, name: str, logs: Path) -> bool:
    """Whether the patch has a report; one of another patch is removed."""
    report, patch = logs / name / _REPORT, logs / name / _PATCH
    is_same = report.exists() and patch.read_text(encoding="utf-8") == run.instances[name].patch
    if not is_same:
        report.unlink(missing_ok=True)
    return is_same


def _prediction(run: SwebenchRun, row: Instance) -> dict[str, str]:
    name = row["instance_id"]
    patch = run.instances[name].patch
    return {"model_name_or_path": run.policy, "instance_id": name, "model_patch": patch}


def _run_in_containers(
    run: SwebenchRun, rows: Sequence[Instance], home: Path, workers: int, time_limit_s: int
) -> None:
    """Run `swebench.harness.run_evaluation`; an interrupt ends it and removes its containers."""
    home.mkdir(parents=True, exist_ok=True)
    run_id = ["--run_id", _HARNESS_RUN]
    harness = [sys.executable, "-m", "swebench.harness.run_evaluation", *run_id]
    harness += ["--max_workers", str(workers), "--timeout", str(time_limit_s)]
    for flag, name, content in (
        ("--dataset_name", "instances.json", list(rows)),
        ("--predictions_path", "predictions.json", [_prediction(run, row) for row in rows]),
    ):
        (home / name).write_text(json.dumps(content), encoding="utf-8")
        harness += [flag, name]
    # it writes below its folder, and on Ctrl-C would wait for what runs
    process = subprocess.Popen(harness, cwd=home, stdout=2, start_new_session=True)
    try:
        status = process.wait()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        remove = [sys.executable, "-m", "swebench.harness.remove_containers", *run_id]
        subprocess.run(remove, capture_output=True)
        raise
    if status:
        raise RunError(f"the harness ended with status {status}: see above, and {home}")


def _run_in_sandboxes(
    run: SwebenchRun, rows: Sequence[Instance], logs: Path, time_limit_s: int
) -> None:
    """Grade each instance in a sandbox of the suite; leave its report, or why there is none."""
    for number, row in enumerate(rows, start=1):
        own = logs / row["instance_id"]
        own.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="agentkv-swebench-") as scratch:
            try:
                error = _grade(row, _prediction(run, row), own, Path(scratch), time_limit_s)
            except Exception as raised:  # such as for half of a character in a patch
                error = f"{type(raised).__name__}: {raised}"
        if error is not None:
            (own / _LOG).write_text(error, errors="replace")
        print(f"[{number}/{len(rows)}] {row['instance_id']}", file=sys.stderr, flush=True)


def _grade(
    row: Instance, prediction: dict[str, str], logs: Path, scratch: Path, time_limit_s: int
) -> str | None:
    """Apply the patch, run the eval script, grade its log; return why there is no report.

    Source: swebench 5.0.2, harness/run_evaluation.py, run_instance.
    """
    from minisweagent.environments import get_environment
    from swebench.harness.grading import get_eval_report
    from swebench.harness.run_evaluation import GIT_APPLY_CMDS
    from swebench.harness.utils import make_test_spec

    spec = make_test_spec({"image": None, **row})
    sandbox = get_environment(sandbox_settings(row, scratch))
    inside = Path(sandbox.config.cwd).with_name("tmp")
    for target, text in (
        (logs / _PATCH, prediction["model_patch"]),
        (inside / _PATCH, prediction["model_patch"]),
        (inside / "eval.sh", spec.eval_script),
    ):
        target.write_text(text, encoding="utf-8", newline="")
    for attempt in GIT_APPLY_CMDS:
        command = f"git checkout -- . ; git clean -fdq; {attempt} /tmp/{_PATCH}"
        applied = sandbox.execute({"command": command}, timeout=_APPLY_LIMIT_S)
        if applied["returncode"] == 0:
            break
    else:
        return f"Error: the patch does not apply: {applied['output']}"
    tested = sandbox.execute({"command": "bash /tmp/eval.sh"}, timeout=time_limit_s)
    if "TimeoutExpired" in tested.get("extra", {}).values():
        return f"Error: the tests took longer than {time_limit_s} seconds"
    log_path = logs / "test_output.txt"
    log_path.write_text(tested["output"], encoding="utf-8", newline="")
    report = get_eval_report(spec, prediction, str(log_path), include_tests_status=True)
    (logs / _REPORT).write_text(json.dumps(report, indent=1) + "\n")
    return None


def _verdict(name: str, logs: Path) -> Verdict | None:
    """Read what the harness left of an instance; None if that is nothing."""
    path, log = logs / _REPORT, logs / _LOG
    if path.exists():
        return _verdict_of(json.loads(path.read_text())[name])
    if not log.exists():
        return None
    lines = [line for line in log.read_text(errors="replace").splitlines() if "Error" in line]
    return "error", f"{' '.join(lines[-1:])[:300]} ({log})"


def _verdict_of(report: Mapping[str, Any]) -> Verdict:
    if report["resolved"]:
        return "resolved", ""
    if not report["patch_successfully_applied"]:
        return "unresolved", "no readable test output"
    failures = []
    for kind, tests in report.get("tests_status", {}).items():
        if kind in ("FAIL_TO_PASS", "PASS_TO_PASS") and (failed := tests["failure"]):
            total = len(failed) + len(tests["success"])
            failures.append(f"{len(failed)} of {total} {kind} fail, first {failed[0]}")
    return "unresolved", "; ".join(failures) or "tests fail"
