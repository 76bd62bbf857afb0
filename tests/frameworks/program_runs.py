"""Runs the programs of frameworks, and reads what a scripted server saw of each of their cases."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

from tests.scripted_apis import ScriptedServer

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
TIMEOUT_S = 180


@cache
def versions() -> Mapping[str, tuple[str, str]]:
    """Each distribution that can be used: its version, and the Python that has it.

    FRAMEWORK_PYTHONS names further ones than this Python; `run.py` sets it.
    """
    others = os.environ.get("FRAMEWORK_PYTHONS", "").split(os.pathsep)
    found: dict[str, tuple[str, str]] = {}
    code = (
        "import importlib.metadata as m, json;"
        "names = {d.name.lower().replace('_', '-'): d.version for d in m.distributions()};"
        "print(json.dumps(names))"
    )
    for python in filter(None, [*others, sys.executable]):
        listed = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
        for name, version in json.loads(listed.stdout).items():
            found.setdefault(name, (version, python))
    return found


@cache
def _path() -> str:
    """A folder with the package alone: next to it, `agents` has the name of a framework.

    It counts as installed.
    """
    folder = Path(tempfile.mkdtemp(prefix="agentkv-alone-"))
    (folder / "agentkv").symlink_to(ROOT / "agentkv")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    metadata = folder / f"agentkv_serving-{project['version']}.dist-info"
    metadata.mkdir()
    name, version = project["name"], project["version"]
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return str(folder)


class Program:
    """A running program, under `agentkv run` or with one line, `agentkv.instrument()`, or alone."""

    def __init__(self, name: str, python: str, base_url: str, how: str = "agentkv run") -> None:
        command = [python, str(PROGRAMS / f"{name}.py")]
        if how.startswith("agentkv run"):
            command = [sys.executable, "-m", "agentkv.cli", *how.split()[1:], "--", *command]
        elif how == "agentkv.instrument()":
            command.append("--instrument")
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - read when the program ended
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={
                **os.environ,
                "OPENAI_BASE_URL": base_url,
                "OPENAI_API_KEY": "key",
                "PYTHONPATH": _path(),
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # it would ask the network for prices
                "CREWAI_DISABLE_TELEMETRY": "true",
                "PYTHONDONTWRITEBYTECODE": "",
            },
            cwd=tempfile.gettempdir(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def answer_to(self, case: str) -> str:
        """What the agent of a case answers; AssertionError if the program ends instead."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(TIMEOUT_S, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write(f"{case}\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith("ANSWER "):
                    return line.removeprefix("ANSWER ").strip()
        finally:
            watchdog.cancel()
        raise AssertionError(f"the program ended in {case}:\n{self.log()[-5000:]}")

    def log(self) -> str:
        """What it wrote to stderr so far."""
        self._log.seek(0)
        return self._log.read()

    def stop(self) -> str:
        """End the program; returns what it wrote to stderr, and "" if it was ended before."""
        if self._log.closed:
            return ""
        with suppress(BrokenPipeError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()  # type: ignore[union-attr]
        with self._log:
            return self.log()


@dataclass(frozen=True, slots=True)
class SeenJob:
    """One job of a case, with its tools as they ended: name, command, seconds."""

    job_id: str
    parent: str | None
    turns: list[int]
    is_streamed: bool
    tools: list[tuple[str | None, str | None, float]]


class CaseReader:
    """Tells apart what a server saw of one case after another."""

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        self._num_turns = self._num_events = 0

    def jobs(self) -> list[SeenJob]:
        """The jobs since the last call, by their first turns, once the server released them all.

        AssertionError if a turn has no job, or a job is not released.
        """
        server, first_turn, first_event = self._server, self._num_turns, self._num_events
        turns = server.turns[first_turn:]
        self._num_turns = first_turn + len(turns)
        assert all("job_id" in turn.tags for turn in turns), [turn.tags for turn in turns]
        job_ids = list(dict.fromkeys(turn.tags["job_id"] for turn in turns))
        server.wait_for(lambda server: set(job_ids) <= set(server.released))
        events = server.tool_events[first_event:]
        self._num_events = first_event + len(events)
        return [
            SeenJob(
                job_id,
                next(t.tags.get("parent_job_id") for t in turns if t.tags["job_id"] == job_id),
                [turn.tags["turn"] for turn in turns if turn.tags["job_id"] == job_id],
                all(t.body.get("stream") for t in turns if t.tags["job_id"] == job_id),
                [
                    (event.get("tool"), event.get("command"), event["duration_s"])
                    for of, event in events
                    if of == job_id and event["state"] == "finished"
                ],
            )
            for job_id in job_ids
        ]
