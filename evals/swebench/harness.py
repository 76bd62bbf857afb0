"""Runs the tests of patches with the official harness: in containers, or in bubblewrap.

`grading` calls `check` and `grade`. In containers `swebench`'s own evaluation runs as a process in
a folder of its own, as it writes below its folder and changes limits of its process. Without
containers the instance's eval script runs in a sandbox with our Python, and the harness's code
grades the log: for instances made for that, such as the suite's.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any, Literal

from agentkv.agents.sandbox import Sandbox, find_bubblewrap

from .environments import fresh_sandbox
from .folder import WORKTREES
from .instances import HarnessError, Instance, SwebenchError

Status = Literal["resolved", "unresolved", "empty", "error"]
STATUSES: tuple[Status, ...] = ("resolved", "unresolved", "empty", "error")
Predictions = Mapping[str, Mapping[str, str]]
LOG_NAME = "harness.log"
_SWEBENCH = (sys.executable, "-m")
_POLL_S = 0.5
_START_LIMIT_S = 30.0
_APPLY_LIMIT_S = 120.0
_LOG_LIMIT_BYTES = 64 * 1024 * 1024
_MAX_REASON_CHARS = 300
_NOT_APPLIED = ">>>>> Patch Apply Failed:"
_OTHER_MODES = "use --mode podman, or --mode daemon-less where the instances allow it"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`detail` gives the reason for every status but `resolved`; the hash is of the patch."""

    status: Status
    detail: str = ""
    patch_sha256: str = ""


Verdicts = Generator[tuple[str, Verdict], None, None]


@dataclass(frozen=True, slots=True)
class ContainerHarness:
    """`swebench.harness.run_evaluation` through `engine`, docker or podman."""

    folder: Path
    workers: int
    time_limit_s: int
    engine: str
    run_id: str

    def check(self) -> None:
        """Raise SwebenchError, which says what to do, unless containers can be had."""
        program = shutil.which(self.engine)  # the harness calls it to remove its containers
        if program is None:
            raise SwebenchError(f"{self.engine} is not here: install it, or {_OTHER_MODES}")
        if self.engine == "docker":
            done = subprocess.run([program, "version"], capture_output=True, text=True)
            if done.returncode:
                said = " ".join(done.stderr.strip().splitlines()[-1:])
                advice = f"start one, or {_OTHER_MODES}"
                raise SwebenchError(f"no docker daemon answers ({said}): {advice}")

    def grade(self, instances: Sequence[Instance], predictions: Predictions) -> Verdicts:
        """Grade these patches; yields the verdict of each instance as it is known.

        Removes what the harness left of these instances first, as it would take results from
        there by run id and model name, not by patch. Raises HarnessError if it fails. A generator
        that is closed early ends the harness and removes its containers.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        patches = [dict(predictions[one.instance_id]) for one in instances]
        # Source: swebench 5.0.2, harness/run_evaluation.py, run_instance
        logs = self.folder / "logs" / "run_evaluation" / self.run_id
        pending = {
            one["instance_id"]: logs
            / one["model_name_or_path"].replace("/", "__")
            / one["instance_id"]
            for one in patches
        }
        for report_folder in pending.values():
            shutil.rmtree(report_folder, ignore_errors=True)
        command = [*_SWEBENCH, "swebench.harness.run_evaluation", "--run_id", self.run_id]
        for flag, name, content in (
            ("--dataset_name", "instances.json", [one.raw for one in instances]),
            ("--predictions_path", "predictions.json", patches),
        ):
            path = self.folder.resolve() / name
            path.write_text(json.dumps(content))
            command += [flag, str(path)]
        command += ["--report_dir", str(self.folder.resolve())]
        command += ["--max_workers", str(self.workers), "--timeout", str(self.time_limit_s)]
        log_path = self.folder / LOG_NAME
        with _engine_environment(self.engine) as environment, log_path.open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # on Ctrl-C the harness would wait for what runs
            )
            has_ended = False
            try:
                while not has_ended:
                    time.sleep(_POLL_S)
                    has_ended = process.poll() is not None
                    for name, report_folder in list(pending.items()):
                        try:
                            report = json.loads((report_folder / "report.json").read_text())
                        except (OSError, ValueError):  # not there yet, or half written
                            continue
                        del pending[name]
                        yield name, verdict_of(report[name])
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if not has_ended:  # instances that were under way keep their containers
                    remove = [*_SWEBENCH, "swebench.harness.remove_containers"]
                    remove += ["--run_id", self.run_id]
                    subprocess.run(remove, env=environment, capture_output=True)
        if status := process.returncode:
            end = _tail(log_path, 15)
            raise HarnessError(
                f"the harness ended with status {status}; the end of {log_path}:\n{end}"
            )
        for name, report_folder in pending.items():
            yield name, failure(name, report_folder)


@dataclass(frozen=True, slots=True)
class LocalHarness:
    """The harness's steps without a container, on a fresh clone of the instance's repository.

    find_repository: returns an instance's git repository, or raises SwebenchError.
    """

    folder: Path
    workers: int
    time_limit_s: float
    find_repository: Callable[[Instance], Path]
    _stopped: Event = field(default_factory=Event)

    def check(self) -> None:
        """Raise SwebenchError unless bubblewrap works here."""
        if find_bubblewrap() is None:
            raise SwebenchError("no bubblewrap that works here: tests never run outside a sandbox")

    def grade(self, instances: Sequence[Instance], predictions: Predictions) -> Verdicts:
        """Grade these patches; yields the verdict of each instance as it is known.

        A generator that is closed early ends the tests that run. Raises OSError if nothing can be
        written.
        """
        with ThreadPoolExecutor(self.workers) as pool:
            pending = {
                pool.submit(self._verdict, one, predictions[one.instance_id]): one.instance_id
                for one in instances
            }
            try:
                for done in as_completed(pending):
                    yield pending[done], done.result()
            finally:
                self._stopped.set()
                pool.shutdown(cancel_futures=True)

    def _verdict(self, instance: Instance, prediction: Mapping[str, str]) -> Verdict:
        try:
            repository = self.find_repository(instance)
            with fresh_sandbox(instance, repository, self.folder / WORKTREES) as sandbox:
                limited = replace(
                    sandbox,
                    output_limit_bytes=_LOG_LIMIT_BYTES,
                    is_stopped=self._stopped.is_set,
                )
                return self._graded(instance, prediction, limited)
        except SwebenchError as error:
            return Verdict("error", str(error))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            # raised by the harness for an odd field or log, and for half of a character, which
            # JSON can contain
            return Verdict("error", f"the harness: {type(error).__name__}: {error}")

    def _graded(
        self, instance: Instance, prediction: Mapping[str, str], sandbox: Sandbox
    ) -> Verdict:
        """Apply the patch, run the eval script, grade the log; all of it is kept on disk."""
        from swebench.harness.grading import get_eval_report
        from swebench.harness.utils import make_test_spec

        logs = self.folder / instance.instance_id
        logs.mkdir(parents=True, exist_ok=True)
        spec = make_test_spec({"image": None, **instance.raw})
        files = {"patch.diff": prediction["model_patch"], "eval.sh": spec.eval_script}
        # both before anything of the model's runs, and could put a link in their place
        for name, text in files.items():
            for folder in (sandbox.scratch or logs, logs):
                (folder / name).write_text(text, encoding="utf-8", newline="")
        if (refusal := _apply(replace(sandbox, time_limit_s=_APPLY_LIMIT_S))) is not None:
            said = " ".join(refusal.split())  # git names the file that failed at the end
            return Verdict("error", f"the patch does not apply: {said[-_MAX_REASON_CHARS:]}")
        result = replace(sandbox, time_limit_s=self.time_limit_s).run("/bin/bash /tmp/eval.sh")
        log_path = logs / "test_output.txt"
        log_path.write_text(result.output, encoding="utf-8", newline="")
        if result.timed_out:
            return Verdict("error", f"the tests ran longer than {self.time_limit_s:g} s")
        report = get_eval_report(
            test_spec=spec,
            prediction=dict(prediction),
            test_log_path=str(log_path),
            include_tests_status=True,
        )[instance.instance_id]
        (logs / "report.json").write_text(json.dumps(report, indent=1) + "\n")
        return verdict_of(report)


def _apply(sandbox: Sandbox) -> str | None:
    """Try the harness's commands in its order; None if one worked, else the last's message.

    Source: swebench 5.0.2, harness/run_evaluation.py, run_instance.
    """
    from swebench.harness.run_evaluation import GIT_APPLY_CMDS

    said = ""
    for attempt, command in enumerate(GIT_APPLY_CMDS):
        if attempt:
            sandbox.run("git checkout -- . ; git clean -fd")
        result = sandbox.run(f"{command} /tmp/patch.diff")
        if result.returncode == 0:
            return None
        said = result.output or said
    is_applied = sandbox.run("git apply --check --reverse /tmp/patch.diff").returncode == 0
    return None if is_applied else said


def verdict_of(report: Mapping[str, Any]) -> Verdict:
    """Convert the harness's report on one instance."""
    if report["resolved"]:
        return Verdict("resolved")
    if not report["patch_successfully_applied"]:
        reason = report.get("infra_failure_reason")
        return Verdict("unresolved", f"no readable test output{f' ({reason})' if reason else ''}")
    failures = []
    for kind, tests in report.get("tests_status", {}).items():
        if kind in ("FAIL_TO_PASS", "PASS_TO_PASS") and (failed := tests["failure"]):
            total = len(failed) + len(tests["success"])
            failures.append(f"{len(failed)} of {total} {kind} fail, first {failed[0]}")
    return Verdict("unresolved", "; ".join(failures) or "tests fail")


def failure(instance_id: str, report_folder: Path) -> Verdict:
    """Return why the harness left no report, in the words of its log of the instance."""
    log = report_folder / "run_instance.log"
    if not log.exists():
        return Verdict("error", f"the harness left neither report nor log: see {LOG_NAME}")
    text = log.read_text(errors="replace")
    if _NOT_APPLIED in text:
        # from where it failed on: git begins with where it looked
        said = f"the patch does not apply: {text.partition(_NOT_APPLIED)[2].strip()}"
    else:
        errors = [line for line in text.splitlines() if "Error" in line or "timed out" in line]
        last = errors[-1] if errors else _tail(log, 1)
        said = last.rpartition(f"Error in evaluation for {instance_id}: ")[2]
    return Verdict("error", " ".join(said.split())[:_MAX_REASON_CHARS])


def _tail(path: Path, num_lines: int) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-num_lines:])


@contextmanager
def _engine_environment(engine: str) -> Iterator[dict[str, str]]:
    """Yield an environment in which the harness finds a daemon, and a `docker` command.

    The harness stops and removes its containers with that command; podman stands in for it.
    """
    if engine == "docker":
        yield dict(os.environ)
        return
    with tempfile.TemporaryDirectory(prefix="agentkv-") as name:
        folder, program = Path(name), shutil.which("podman") or "podman"
        stand_in = folder / "docker"
        stand_in.write_text(f'#!/bin/sh\nexec "{program}" "$@"\n')
        stand_in.chmod(0o755)
        socket, log_path = folder / "podman.sock", folder / "podman.log"
        command = [program, "system", "service", "--time=0", f"unix://{socket}"]
        with log_path.open("wb") as log:
            service = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            deadline_s = time.monotonic() + _START_LIMIT_S
            while not socket.exists():
                if service.poll() is not None or time.monotonic() > deadline_s:
                    raise HarnessError(f"podman does not serve its API: {_tail(log_path, 5)}")
                time.sleep(_POLL_S / 5)
            path = f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"
            yield {**os.environ, "PATH": path, "DOCKER_HOST": f"unix://{socket}"}
        finally:
            service.terminate()
            service.wait()
