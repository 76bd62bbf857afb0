"""`agentkv swebench eval`: grade the patches of a run with the official harness.

`docker` and `podman` are the real thing: `swebench`'s own evaluation in the instances' images.
`daemon-less` runs an instance's own eval script in bubblewrap, and has the log graded by the
harness's own code: for the tiny suite, and labelled as such in every report.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkv.agents.sandbox import find_bubblewrap
from agentkv.errors import AgentKVError

from ..options import whole_number
from ..rows import provenance
from .errors import HarnessError, SwebenchError
from .eval_containers import ENGINES, check_engine, run_harness
from .eval_plan import EvalPlan, plan
from .eval_results import STATUSES, EvalFile, Verdict, patch_sha256, read_eval
from .grading import harness_version
from .instances import Instance, fingerprint, load_instances
from .local_harness import LocalHarness
from .report_runs import SwebenchRun, read_run
from .run_plan import IMAGE_BYTES
from .termination import ended_by_terminate
from .worktree import find_repositories

DAEMON_LESS = "daemon-less"
MODES = (*ENGINES, DAEMON_LESS)
EVAL_FOLDER = "eval"
_SAME = ("mode", "harness_version", "dataset_sha256")
"""What a verdict of before must have in common with one of now."""
_TIME_LIMIT_S = 1800
"""Seconds for the tests of an instance. Source: swebench 5.0.2, its default."""


def main(argv: Sequence[str] | None = None) -> int:
    """Grade a run; 0 graded, 1 the harness failed or was interrupted, 2 it cannot be graded so."""
    options = _parser().parse_args(argv)
    try:
        document = evaluate(
            options.run_dir,
            mode=options.mode,
            dataset=options.dataset,
            repositories=options.repositories,
            workers=options.workers,
            time_limit_s=options.time_limit_s,
            is_redone=options.redo,
            is_dry=options.dry_run,
            say=_say,
        )
    except KeyboardInterrupt:
        _say("interrupted: verdicts so far are kept, the same command goes on from there")
        return 1
    except (AgentKVError, OSError) as error:
        _say(f"agentkv swebench eval: {error}")
        return 1 if isinstance(error, (HarnessError, OSError)) else 2
    print(json.dumps(document))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agentkv swebench eval", description=__doc__)
    parser.add_argument("run_dir", type=Path, help="the --out of `agentkv swebench run`")
    parser.add_argument("--mode", choices=MODES, default="docker", help="default: docker")
    parser.add_argument("--dataset", help="default: the one that the run names")
    parser.add_argument(
        "--repositories",
        type=Path,
        help="clones for daemon-less, of instances that are not of the tiny suite",
    )
    parser.add_argument(
        "--workers",
        type=whole_number(1),
        default=max(1, (os.cpu_count() or 1) * 3 // 4),
        help="instances graded at once; default: three quarters of the cores",
    )
    parser.add_argument(
        "--time-limit-s",
        type=whole_number(1),
        default=_TIME_LIMIT_S,
        help=f"seconds for the tests of one instance; default: {_TIME_LIMIT_S}",
    )
    parser.add_argument("--redo", action="store_true", help="grade again what has a verdict")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be graded")
    return parser


def evaluate(
    folder: Path,
    *,
    mode: str,
    dataset: str | None = None,
    repositories: Path | None = None,
    workers: int = 1,
    time_limit_s: int = _TIME_LIMIT_S,
    is_redone: bool = False,
    is_dry: bool = False,
    say: Any = print,
) -> dict[str, Any]:
    """Grade what has no verdict yet, and return the counts; every instance of the run gets one.

    Raises SwebenchError, and leaves the verdicts so far, whatever their mode, where no container
    or sandbox can be had.
    """
    run = read_run(folder)
    found = load_instances(dataset or str(run.document.get("dataset")))
    instances = {instance.instance_id: instance for instance in found}
    facts = _facts(run, mode, [instances[name] for name in run.instance_ids if name in instances])
    earlier = {} if is_redone else _earlier(run, facts)
    to_do = plan(run, instances, earlier, needs_image=mode in ENGINES)
    if is_dry:
        return _dry(run, mode, to_do)
    if to_do.to_grade:
        _check_mode(mode)
    results = EvalFile(folder, mode, run.instance_ids, facts)
    results.keep({**to_do.settled, **to_do.kept})
    say(f"{len(to_do.to_grade)} patches to grade, {len(to_do.kept)} graded before ({mode})")
    num_told = 0

    def on_verdict(instance_id: str, verdict: Verdict) -> None:
        nonlocal num_told
        num_told += 1
        digest = patch_sha256(run.patch(instance_id))
        results.add(instance_id, Verdict(verdict.status, verdict.detail, digest))
        told = f": {verdict.detail}" if verdict.detail else ""
        say(f"[{num_told}/{len(to_do.to_grade)}] {instance_id} {verdict.status}{told}")

    with ended_by_terminate():
        if to_do.to_grade and mode == DAEMON_LESS:
            _grade_locally(run, to_do, repositories, workers, time_limit_s, on_verdict)
        elif to_do.to_grade:
            run_harness(
                to_do.to_grade,
                to_do.predictions,
                folder=folder / EVAL_FOLDER / mode,
                run_id=run.run_id,
                engine="docker" if mode == "docker" else "podman",
                workers=workers,
                time_limit_s=time_limit_s,
                on_verdict=on_verdict,
            )
    return _counts(run, mode, results.verdicts)


def _check_mode(mode: str) -> None:
    if mode == DAEMON_LESS and find_bubblewrap() is None:
        raise SwebenchError("no bubblewrap that works here: tests never run outside a sandbox")
    if mode in ENGINES:
        check_engine("docker" if mode == "docker" else "podman")


def _earlier(run: SwebenchRun, facts: Mapping[str, Any]) -> Mapping[str, Verdict]:
    """Verdicts of before that still count: by the same mode, harness and instances."""
    found = read_eval(run.folder)
    if found is None:
        return {}
    document, verdicts = found
    is_alike = all(document.get(name) == facts[name] for name in _SAME)
    return verdicts if is_alike else {}


def _facts(run: SwebenchRun, mode: str, instances: Sequence[Instance]) -> dict[str, Any]:
    return {
        "mode": mode,
        "harness_version": harness_version(),
        "dataset_sha256": fingerprint(instances),
        "run_id": run.run_id,
        "policy": run.policy,
        **provenance("swebench", "docker"),
    }


def _grade_locally(
    run: SwebenchRun,
    to_do: EvalPlan,
    repositories: Path | None,
    workers: int,
    time_limit_s: int,
    on_verdict: Any,
) -> None:
    bubblewrap = find_bubblewrap()
    assert bubblewrap is not None, "the mode has been checked"
    home = run.folder / EVAL_FOLDER / DAEMON_LESS
    home.mkdir(parents=True, exist_ok=True)

    def find_repository(instance: Instance) -> Path:
        suite_folder = home / "repositories"
        found = find_repositories([instance], given=repositories, suite_folder=suite_folder)
        return found[instance.instance_id]

    LocalHarness(bubblewrap, find_repository, home, time_limit_s).grade(
        to_do.to_grade, to_do.predictions, workers=workers, on_verdict=on_verdict
    )


def _dry(run: SwebenchRun, mode: str, to_do: EvalPlan) -> dict[str, Any]:
    images = _images(to_do.to_grade) if mode in ENGINES else []
    return {
        "dry_run": True,
        "run_id": run.run_id,
        "policy": run.policy,
        "mode": mode,
        "harness_version": harness_version(),
        "to_grade": len(to_do.to_grade),
        "graded_before": len(to_do.kept),
        **{
            status: sum(verdict.status == status for verdict in to_do.settled.values())
            for status in ("empty", "error")
        },
        "disk": {
            "num_images": len(images),
            "images_bytes_estimate": len(images) * IMAGE_BYTES,
            "free_bytes": shutil.disk_usage(run.folder).free,
        },
        "images": images,
    }


def _images(instances: Sequence[Instance]) -> list[str]:
    return sorted({str(instance.raw["image"]) for instance in instances})


def _counts(run: SwebenchRun, mode: str, verdicts: Mapping[str, Verdict]) -> dict[str, Any]:
    found = Counter(verdict.status for verdict in verdicts.values())
    return {
        "instances": len(run.instance_ids),
        **{status: found[status] for status in STATUSES},
        "policy": run.policy,
        "mode": mode,
        "run": str(run.folder),
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
