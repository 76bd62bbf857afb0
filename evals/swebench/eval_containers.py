"""Grades patches with the official harness in containers, through docker or podman.

The harness runs in a process of its own, in a folder of its own: it writes below the folder it is
started in, and changes limits of its process. Its verdicts are read from the reports it leaves.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from .errors import HarnessError, SwebenchError
from .eval_results import Verdict
from .grading import verdict
from .instances import Instance

Engine = Literal["docker", "podman"]
ENGINES: tuple[Engine, ...] = ("docker", "podman")
LOG_NAME = "harness.log"
_POLL_S = 0.5
_START_LIMIT_S = 30.0
_MAX_REASON_CHARS = 300
_NOT_APPLIED = ">>>>> Patch Apply Failed:"


def run_harness(
    instances: Sequence[Instance],
    predictions: Mapping[str, Mapping[str, str]],
    *,
    folder: Path,
    run_id: str,
    engine: Engine,
    workers: int,
    time_limit_s: int,
    on_verdict: Callable[[str, Verdict], None],
) -> None:
    """Grade these instances' patches; `on_verdict` is called as each is known, in this thread.

    What the harness left of earlier evaluations of these instances in `folder` is removed first:
    it takes its results from there by run id and model name, whatever the patch. Raises
    HarnessError if the harness as a whole fails.
    """
    reports = {
        instance.instance_id: _log_folder(folder, run_id, predictions[instance.instance_id])
        for instance in instances
    }
    for report_folder in reports.values():
        shutil.rmtree(report_folder, ignore_errors=True)
    command = _command(instances, predictions, folder, run_id, workers, time_limit_s)
    told: set[str] = set()

    def tell() -> None:
        for instance_id, report_folder in reports.items():
            found = None if instance_id in told else _reported(instance_id, report_folder)
            if found is not None:
                told.add(instance_id)
                on_verdict(instance_id, found)

    with _engine_environment(engine) as environment:
        try:
            status = _run(command, folder, environment, tell)
        except BaseException:
            _remove_containers(run_id, environment)
            raise
    if status:
        raise HarnessError(
            f"the harness ended with status {status}; the end of {folder / LOG_NAME}:\n"
            f"{_tail(folder / LOG_NAME, 15)}"
        )
    for instance_id in reports.keys() - told:
        on_verdict(instance_id, failure(instance_id, reports[instance_id]))


def check_engine(engine: Engine) -> None:
    """Raise SwebenchError, which says what to do, unless containers can be had; takes a second."""
    if engine == "docker":
        _check_docker()
    elif shutil.which("podman") is None:
        raise SwebenchError("podman is not here: install it, or use another --mode")


def _command(
    instances: Sequence[Instance],
    predictions: Mapping[str, Mapping[str, str]],
    folder: Path,
    run_id: str,
    workers: int,
    time_limit_s: int,
) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    dataset, patches = folder / "instances.json", folder / "predictions.json"
    dataset.write_text(json.dumps([dict(instance.raw) for instance in instances]))
    chosen = [dict(predictions[instance.instance_id]) for instance in instances]
    patches.write_text(json.dumps(chosen))
    arguments = {
        "--dataset_name": dataset.resolve(),
        "--predictions_path": patches.resolve(),
        "--run_id": run_id,
        "--max_workers": workers,
        "--timeout": time_limit_s,
        "--report_dir": folder.resolve(),
    }
    flags = [str(part) for pair in arguments.items() for part in pair]
    return [sys.executable, "-m", "swebench.harness.run_evaluation", *flags]


def _run(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], tell: Callable[[], None]
) -> int:
    with (folder / LOG_NAME).open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is ours: the harness would wait for what runs
        )
        try:
            while process.poll() is None:
                tell()
                time.sleep(_POLL_S)
        finally:
            # it would go on with what runs, for half an hour maybe
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    tell()
    return process.returncode


def _remove_containers(run_id: str, environment: Mapping[str, str]) -> None:
    """What the harness does at the end of each instance, for those under way when it was killed.

    Source: swebench 5.0.2, harness/run_evaluation.py, create_container: their names.
    """
    listed = _docker(["ps", "--all", "--format", "{{.Names}}"], environment).split()
    names = [name for name in listed if name.startswith("sweb.eval.") and f".{run_id}" in name]
    if names:
        _docker(["rm", "--force", *names], environment)


def _docker(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    # looked up in this PATH, which may hold a stand-in
    program = shutil.which("docker", path=environment.get("PATH")) or "docker"
    return subprocess.run(
        [program, *arguments], check=False, env=dict(environment), capture_output=True, text=True
    ).stdout


def _log_folder(folder: Path, run_id: str, prediction: Mapping[str, str]) -> Path:
    """Where the harness writes about one instance.

    Source: swebench 5.0.2, harness/run_evaluation.py, run_instance.
    """
    model = prediction["model_name_or_path"].replace("/", "__")
    return folder / "logs" / "run_evaluation" / run_id / model / prediction["instance_id"]


def _reported(instance_id: str, report_folder: Path) -> Verdict | None:
    try:
        report: dict[str, Any] = json.loads((report_folder / "report.json").read_text())
    except (OSError, ValueError):  # not there yet, or half written
        return None
    return verdict(report[instance_id])


def failure(instance_id: str, report_folder: Path) -> Verdict:
    """Why the harness left no report, in its own words from its log of the instance."""
    log = report_folder / "run_instance.log"
    if not log.exists():
        return Verdict("error", f"the harness left neither report nor log: see {LOG_NAME}")
    text = log.read_text(errors="replace")
    if _NOT_APPLIED in text:
        # from where it failed on: what git says first is where it looked
        said = f"the patch does not apply: {text.partition(_NOT_APPLIED)[2].strip()}"
    else:
        errors = [line for line in text.splitlines() if "Error" in line or "timed out" in line]
        last = errors[-1] if errors else _tail(log, 1)
        said = last.rpartition(f"Error in evaluation for {instance_id}: ")[2]
    return Verdict("error", " ".join(said.split())[:_MAX_REASON_CHARS])


def _tail(path: Path, num_lines: int) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-num_lines:])


@contextmanager
def _engine_environment(engine: Engine) -> Iterator[dict[str, str]]:
    """Environment in which the harness finds a daemon that answers, and a `docker` command.

    The harness calls that command to stop and remove containers; without one they would be left.
    """
    with tempfile.TemporaryDirectory(prefix="agentkv-") as name:
        environment = dict(os.environ)
        if engine == "docker":
            yield environment
            return
        program = shutil.which("podman") or "podman"
        stand_in = Path(name) / "bin" / "docker"
        stand_in.parent.mkdir()
        stand_in.write_text(f'#!/bin/sh\nexec "{program}" "$@"\n')
        stand_in.chmod(0o755)
        environment["PATH"] = f"{stand_in.parent}{os.pathsep}{environment.get('PATH', '')}"
        with _podman_service(program, Path(name) / "podman.sock") as address:
            yield {**environment, "DOCKER_HOST": address}


@contextmanager
def _podman_service(program: str, socket: Path) -> Iterator[str]:
    address = f"unix://{socket}"
    log_path = socket.with_suffix(".log")
    with log_path.open("wb") as log:
        service = subprocess.Popen(
            [program, "system", "service", "--time=0", address], stdout=log, stderr=log
        )
    try:
        deadline_s = time.monotonic() + _START_LIMIT_S
        while not socket.exists():
            if service.poll() is not None or time.monotonic() > deadline_s:
                raise HarnessError(f"podman does not serve its API: {_tail(log_path, 5)}")
            time.sleep(_POLL_S / 5)
        yield address
    finally:
        service.terminate()
        service.wait()


def _check_docker() -> None:
    """Raise SwebenchError unless a daemon answers the harness's own client."""
    # in a process of its own: the client leaves its socket open where nothing answers
    ping = [sys.executable, "-c", "import docker; docker.from_env().ping()"]
    done = subprocess.run(ping, check=False, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:]
        raise SwebenchError(
            f"no docker daemon answers ({' '.join(said)}): start one, or use --mode podman, or "
            "--mode daemon-less where the instances allow it"
        )
    if shutil.which("docker") is None:
        raise SwebenchError(
            "no `docker` command: the harness stops and removes its containers with it"
        )
