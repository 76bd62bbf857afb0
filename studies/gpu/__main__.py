"""Measures a GPU in the minutes there are: finds a rung, calibrates, plays regimes in order.

Ends when the minutes are over; called again with the same --out it goes on where it was. Each
regime is a `studies.gpu.compare`, whose rows are written turn by turn; `rows.jsonl` gets a line a
run.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentkv.command_line import positive
from agentkv.evals.rows import RUN_FILE

from .rungs import find_rung

POLICIES = ("fcfs", "continuum:released", "agentkv", "context_serve")
TIERED = tuple(f"{name}+offload" for name in POLICIES)
SCARCE, ROOMY = (), ("--num-gpu-blocks-override", "5000")
REFERENCE = ("--workload", "reference", "--token-scale", "4", "--jobs", "60")
STOP_S = 30.0
"""Kept for a run to write what it has when the time is over."""
LEAST_S = 60.0
"""A step is not begun with less: its server would hardly start."""


@dataclass(frozen=True, slots=True)
class Step:
    """One call of `studies.gpu.compare`: flags of a regime, policies, and how many runs of each."""

    regime: str
    flags: tuple[str, ...]
    policies: tuple[str, ...]
    repeats: int

    def is_done(self, out: Path) -> bool:
        """Whether all of its runs are on disk, to their end."""
        return all(
            _ended(out / self.regime / f"{policy.replace(':', '-')}-{repeat}" / RUN_FILE)
            for policy in self.policies
            for repeat in range(self.repeats)
        )


def _ended(path: Path) -> bool:
    if not path.exists():
        return False
    metadata = json.loads(path.read_text(encoding="utf-8"))["metadata"]
    return metadata.get("stopped_because") is None


_REGIMES = (("scarce", SCARCE), ("roomy", ROOMY), ("reference", REFERENCE))
STEPS = (
    Step("scarce", SCARCE, POLICIES, 1),
    Step("scarce", SCARCE, TIERED, 1),
    Step("roomy", ROOMY, POLICIES, 1),
    Step("reference", REFERENCE, POLICIES, 1),
    *(Step(name, flags, POLICIES, n) for n in (2, 3) for name, flags in _REGIMES),
    Step("scarce", SCARCE, TIERED, 3),
)
"""First what says most: one regime of all policies, the tier, then a second pool, then repeats."""

Play = Callable[[Step, float], None]
"""Plays a step, for at most a number of seconds."""


def drive(
    steps: Sequence[Step],
    out: Path,
    play: Play,
    *,
    limit_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Play the steps that are not done, in order, while there is time; whether all are done."""
    end_s = clock() + limit_s
    for step in steps:
        if step.is_done(out):
            continue
        left_s = end_s - clock()
        if left_s < LEAST_S:
            break
        play(step, left_s - STOP_S)
        write_rows(out)
    return all(step.is_done(out) for step in steps)


def write_rows(out: Path) -> None:
    """Write a line of each run that ended, with its regime, to `rows.jsonl`."""
    with (out / "rows.jsonl").open("w", encoding="utf-8") as rows:
        for path in sorted(out.glob(f"*/*/{RUN_FILE}")):
            if _ended(path):
                run = json.loads(path.read_text(encoding="utf-8"))
                facts = {"regime": path.parents[1].name, "repeat": run["metadata"]["repeat"]}
                rows.write(json.dumps(facts | run["summary"]) + "\n")


def compare_command(
    step: Step, out: Path, card: str, server_flags: Sequence[str], more: Sequence[str] = ()
) -> list[str]:
    """The comparison of a step; the first one measures the card, later ones know it."""
    profile = out / STEPS[0].regime / "profile.json"
    is_known = step.regime != STEPS[0].regime and profile.exists()
    command = [sys.executable, "-m", "studies.gpu.compare", "--resume", "--json"]
    command += ["--gpu", str(profile) if is_known else card, "--out", str(out / step.regime)]
    command += ["--repeats", str(step.repeats), *step.flags, *more]
    for policy in step.policies:
        command += ["--policy", policy]
    return [*command, "--", *server_flags]


def main() -> int:
    """0: all is measured; 1: there is more to do."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="what was measured, and what is gone on with")
    add("--minutes", type=positive, required=True, help="how long this call may take")
    add(
        "--card", default="h100", help="as `studies.gpu.compare --gpu` has it (default %(default)s)"
    )
    names = [name for name, _ in _REGIMES]
    add("--regimes", nargs="+", choices=names, default=names, help="default: all")
    add("compare_flags", nargs="*", metavar="-- FLAG", help="more flags of `agentkv bench`")
    options = parser.parse_args()
    started_s = time.monotonic()
    out: Path = options.out
    rung = find_rung(out, limit_s=60.0 * options.minutes)
    if rung is None:
        return 1
    environment = {**os.environ, **rung.environment(out / "stub")}
    limit_s = 60.0 * options.minutes - (time.monotonic() - started_s)

    def play(step: Step, seconds: float) -> None:
        command = compare_command(step, out, options.card, rung.flags, options.compare_flags)
        _run(command, environment, out / f"{step.regime}.log", seconds)

    steps = [step for step in STEPS if step.regime in options.regimes]
    return 0 if drive(steps, out, play, limit_s=limit_s) else 1


def _run(command: list[str], environment: Mapping[str, str], log: Path, seconds: float) -> None:
    """Run a command; when its time is over it ends as on Ctrl-C, and keeps what it has."""
    with log.open("ab") as file:
        process = subprocess.Popen(command, env=dict(environment), stdout=file, stderr=file)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
    if process.returncode:
        print(f"not done, see {log}: {shlex.join(command[1:])}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
