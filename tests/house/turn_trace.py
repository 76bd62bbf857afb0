"""Counts the wheel's Python calls for one turn of a job, on vLLM's real scheduler in this process.

`python -m tests.house.turn_trace [--policy NAME ...]` plays a job's turns with the scripted reply
below and traces one of them: how many calls, into how many files, and how often the file changes
from one call to the next. A phase is what runs inside one method of RetentionManager, and in none
that it calls for another phase, so vLLM's own calls and those of the scheduler and the seam are
left out. The last line is one JSON document; exit status 1 if a figure is above LIMITS.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
WHEEL = ("agentkv/", "agents/", "evals/", "integrations/")
PHASES: Mapping[str, Sequence[str]] = {
    "arrive": ("request_arrived",),
    "admit": ("turn_admitted",),
    "may it keep its blocks": ("keeps_blocks",),
    "end": ("request_ended",),
    "read and decide": ("_read",),
}
"""Phase of a turn -> methods of RetentionManager that the scheduler calls for it."""
FINISHED = "end"
"""The phase that counts as "a finished turn": from the report that the request ended, to its
decision about the pin; the reply is read after it, in a background thread."""

LIMITS: Mapping[str, tuple[int, int, int]] = {
    "agentkv, finished": (49, 13, 25),
    "agentkv, whole": (311, 43, 162),
    "continuum, finished": (32, 12, 22),
    "continuum, whole": (110, 25, 73),
}
"""Calls, files and changes of file at most."""

NUM_TURNS = 4
"""The last one is traced: by then nothing is made for the first time."""
REPLY = "I will run the tests first.\n```bash\npytest -q tests\n```"
POLICIES = ("agentkv", "continuum")


@dataclass(frozen=True, slots=True)
class Figure:
    """Calls, distinct files, and changes of file from one call to the next."""

    calls: int
    files: int
    changes: int

    @classmethod
    def of(cls, files: Sequence[str]) -> Figure:
        changes = sum(a != b for a, b in itertools.pairwise(files))
        return cls(len(files), len(set(files)), changes)

    def __str__(self) -> str:
        return f"{self.calls}/{self.files}/{self.changes}"


@cache
def wheel_file(file_name: str) -> str | None:
    """Path of a file of the wheel below the checkout; None for every other file."""
    path = Path(file_name).resolve()
    if not path.is_relative_to(ROOT):
        return None
    name = path.relative_to(ROOT).as_posix()
    is_ours = name.startswith(WHEEL) and not name.startswith("evals/")
    return name if is_ours else None


@dataclass
class Trace:
    """Files of the calls that were made inside each phase, in order."""

    methods: Mapping[Any, str]
    """Code object of a phase's method -> the phase."""
    files: dict[str, list[str]] = field(default_factory=lambda: {phase: [] for phase in PHASES})
    _phases: list[str] = field(default_factory=list)

    @contextmanager
    def watching(self) -> Iterator[None]:
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        phase = self.methods.get(frame.f_code)
        if event == "call":
            if phase is not None:
                self._phases.append(phase)
            if self._phases and (name := wheel_file(frame.f_code.co_filename)) is not None:
                self.files[self._phases[-1]].append(name)
        elif phase is not None:
            self._phases.pop()

    @property
    def whole(self) -> Figure:
        """All phases, one after the other."""
        return Figure.of([name for files in self.files.values() for name in files])


def trace_turn(policy: str) -> Trace:
    """Play a job's turns, each of which returns to its pin, and trace the last one."""
    from tests.stepped_engine import SteppedEngine, prompt_of

    engine = SteppedEngine(num_blocks=400, policy=policy)
    manager = type(engine.scheduler.retention)
    methods = {
        getattr(manager, name).__code__: phase for phase, names in PHASES.items() for name in names
    }
    trace = Trace(methods)
    context = prompt_of(64)
    for number in range(1, NUM_TURNS + 1):
        tags = {"job_id": "job", "turn": number}
        if number < NUM_TURNS:
            context = engine.turn(context, max_tokens=20, reply=REPLY, **tags)
        else:
            with trace.watching():
                engine.turn(context, max_tokens=20, reply=REPLY, **tags)
        context += prompt_of(32, salt=number)
        engine.wait(0.5)
    (job,) = engine.scheduler.retention.jobs
    if job.num_turns != NUM_TURNS or not all(trace.files[phase] for phase in ("arrive", FINISHED)):
        raise AssertionError("the job did not play its turns, or PHASES names what is not called")
    return trace


def figures_of(policy: str, trace: Trace) -> Iterator[tuple[str, Figure]]:
    """The two figures of a policy, by their names in LIMITS."""
    yield f"{policy}, finished", Figure.of(trace.files[FINISHED])
    yield f"{policy}, whole", trace.whole


def above_limits(figures: Mapping[str, Figure]) -> list[str]:
    """A line for each figure above its limit."""
    return [
        f"{name}: {figure}, at most {Figure(*limit)}"
        for name, limit in LIMITS.items()
        if (figure := figures.get(name)) is not None
        and (figure.calls > limit[0] or figure.files > limit[1] or figure.changes > limit[2])
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures by phase and policy."""
    from agentkv.evals.simulator.vllm_scheduler import quiet_vllm

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policy", action="append", help=f"default: {' and '.join(POLICIES)}")
    policies = parser.parse_args(arguments).policy or POLICIES
    quiet_vllm()
    traces = {policy: trace_turn(policy) for policy in policies}
    for policy, trace in traces.items():
        print(f"{policy}: calls/files/changes of file")
        for phase, files in trace.files.items():
            print(f"  {phase:24}{Figure.of(files)}")
        print(f"  {'a whole turn':24}{trace.whole}")
    figures = {
        name: figure for policy in traces for name, figure in figures_of(policy, traces[policy])
    }
    print(json.dumps({name: str(figure) for name, figure in figures.items()}))
    above = above_limits(figures)
    print("".join(f"{line}\n" for line in above), end="", file=sys.stderr)
    return int(bool(above))


if __name__ == "__main__":
    raise SystemExit(main())
