"""Grades the patches of a run, and keeps a verdict with its reason for each instance.

Every rule about tests is the official harness's; this module decides what needs grading, names what
would break the harness or fool it, and keeps `eval.json`. `harness` runs the tests.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..rows import provenance, write_whole
from .batch import terminate_as_interrupt
from .environments import find_repositories
from .folder import EVAL_FILE, EVAL_FOLDER, REPOSITORIES, SwebenchRun, read_object, read_run
from .harness import STATUSES, ContainerHarness, LocalHarness, Verdict
from .instances import CONTAINERS, DAEMON_LESS, Instance, SwebenchError, fingerprint, load_instances
from .run import disk_needed

TIME_LIMIT_S = 1800
"""Seconds for the tests of an instance. Source: swebench 5.0.2, its default."""
_SAME = ("mode", "harness_version", "dataset_sha256")
"""What an earlier verdict must have in common with one of now to be kept."""
_TEXTS = ("eval_script", "log_parser", "eval_type")
"""Fields without which, as without version and PASS_TO_PASS, a whole batch ends in an exception.

Source: swebench 5.0.2, harness/utils.py, make_test_spec.
"""


def evaluate(
    folder: Path,
    *,
    mode: str,
    dataset: str | None = None,
    repositories: Path | None = None,
    workers: int = 1,
    time_limit_s: int = TIME_LIMIT_S,
    is_redone: bool = False,
    is_dry: bool = False,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Grade what has no verdict yet, and return the counts; every instance of the run gets one.

    Raises SwebenchError if no container or sandbox can be had, which keeps all earlier verdicts,
    and HarnessError if the harness as a whole fails.
    """
    run = read_run(folder)
    found = load_instances(dataset or str(run.document.get("dataset")))
    instances = {one.instance_id: one for one in found if one.instance_id in run.instance_ids}
    in_order = [instances[name] for name in run.instance_ids if name in instances]
    facts = {
        "mode": mode,
        "harness_version": harness_version(),
        "dataset_sha256": fingerprint(in_order),
        "run_id": run.run_id,
        "policy": run.policy,
        **provenance("swebench", "docker"),
    }
    before, earlier = (None if is_redone else read_eval(folder)) or ({}, {})
    if any(before.get(name) != facts[name] for name in _SAME):
        earlier = {}
    settled, kept, to_grade = _sorted(run, instances, earlier, needs_image=mode in CONTAINERS)
    if is_dry:
        return _described(run, facts, settled, len(kept), to_grade)
    home = folder / EVAL_FOLDER / mode
    harness: LocalHarness | ContainerHarness

    def find_repository(instance: Instance) -> Path:
        suite_folder = home / REPOSITORIES
        found = find_repositories([instance], given=repositories, suite_folder=suite_folder)
        return found[instance.instance_id]

    if mode == DAEMON_LESS:
        harness = LocalHarness(home, workers, time_limit_s, find_repository)
    else:
        harness = ContainerHarness(home, workers, time_limit_s, mode, run.run_id)
    if to_grade:
        harness.check()
    verdicts = {**settled, **kept}
    _write_eval(run, facts, verdicts)
    say(f"{len(to_grade)} patches to grade, {len(kept)} graded before ({mode})")
    num_graded = 0

    def on_verdict(instance_id: str, verdict: Verdict) -> None:
        nonlocal num_graded
        num_graded += 1
        verdicts[instance_id] = replace(verdict, patch_sha256=patch_sha256(run.patch(instance_id)))
        _write_eval(run, facts, verdicts)
        why = f": {verdict.detail}" if verdict.detail else ""
        say(f"[{num_graded}/{len(to_grade)}] {instance_id} {verdict.status}{why}")

    if to_grade:
        predictions = {
            name: {"model_name_or_path": run.policy, **run.predictions[name], "instance_id": name}
            for name in (one.instance_id for one in to_grade)
        }
        with terminate_as_interrupt():
            harness.grade(to_grade, predictions, on_verdict)
    counts = Counter(verdict.status for verdict in verdicts.values())
    return {
        "instances": len(run.instance_ids),
        **{status: counts[status] for status in STATUSES},
        "policy": run.policy,
        "mode": mode,
        "run": str(run.folder),
    }


def harness_version() -> str:
    """Return the official harness's version; raises SwebenchError if it is not installed."""
    try:
        return version("swebench")
    except PackageNotFoundError as error:
        raise SwebenchError(
            "the official harness is missing: run `pip install 'agentkv-serving[swebench]'`"
        ) from error


def read_eval(folder: Path) -> tuple[dict[str, Any], dict[str, Verdict]] | None:
    """Read `eval.json`: its facts and its verdicts; None if there is none.

    Raises SwebenchError if the file is damaged.
    """
    path = folder / EVAL_FILE
    document = read_object(path)
    if document is None:
        return None
    try:
        verdicts = {
            name: Verdict(entry["status"], entry.get("detail", ""), entry.get("patch_sha256", ""))
            for name, entry in document.pop("results").items()
        }
    except (LookupError, TypeError, AttributeError) as error:
        raise SwebenchError(
            f"{path}: is no evaluation ({error}): grade again with --redo"
        ) from error
    unknown = {verdict.status for verdict in verdicts.values()} - set(STATUSES)
    if unknown:
        raise SwebenchError(f"{path}: unknown status {sorted(unknown)}: grade again with --redo")
    return document, verdicts


def patch_sha256(patch: str) -> str:
    """Return what tells one patch from another in `eval.json`."""
    return hashlib.sha256(patch.encode(errors="surrogatepass")).hexdigest()


def _sorted(
    run: SwebenchRun,
    instances: Mapping[str, Instance],
    earlier: Mapping[str, Verdict],
    *,
    needs_image: bool,
) -> tuple[dict[str, Verdict], dict[str, Verdict], list[Instance]]:
    """Sort the run's instances: settled without tests, graded before, and to be graded."""
    settled: dict[str, Verdict] = {}
    kept: dict[str, Verdict] = {}
    to_grade: list[Instance] = []
    for instance_id in run.instance_ids:
        digest = patch_sha256(run.patch(instance_id))
        instance, before = instances.get(instance_id), earlier.get(instance_id)
        known = _settled(run, instance_id, instance, needs_image=needs_image)
        if known is not None:
            settled[instance_id] = replace(known, patch_sha256=digest)
        elif before and before.status != "error" and before.patch_sha256 == digest:
            kept[instance_id] = before
        elif instance is not None:
            to_grade.append(instance)
    return settled, kept, to_grade


def _settled(
    run: SwebenchRun, instance_id: str, instance: Instance | None, *, needs_image: bool
) -> Verdict | None:
    """Return the verdict that needs no tests; None if the patch has to be graded."""
    if instance is None:
        return Verdict("error", "the dataset lacks this instance")
    row = run.rows.get(instance_id)
    if row is None and instance_id not in run.predictions:
        return Verdict("error", "not run: the run ended before it came to this instance")
    if not run.patch(instance_id).strip():
        if row and row.get("error"):
            return Verdict("error", f"the agent failed: {row['error']}")
        return Verdict("empty", f"no patch; the agent ended with {(row or {}).get('exit_status')}")
    raw = instance.raw
    texts = (*_TEXTS, "image") if needs_image else _TEXTS
    is_there = {name: isinstance(raw.get(name), str) and raw[name] for name in texts}
    is_there["version"] = "version" in raw
    is_there["PASS_TO_PASS"] = raw.get("PASS_TO_PASS") not in (None, "")
    if missing := [name for name, is_good in is_there.items() if not is_good]:
        return Verdict("error", f"the instance lacks {', '.join(missing)}")
    if not instance.fail_to_pass:
        # the harness would count it as resolved: compute_fail_to_pass of an empty list is 1
        reason = "the instance has no FAIL_TO_PASS tests: nothing can show that it is resolved"
        return Verdict("error", reason)
    return None


def _write_eval(
    run: SwebenchRun, facts: Mapping[str, Any], verdicts: Mapping[str, Verdict]
) -> None:
    """Write eval.json whole, after each verdict, so that an interrupt keeps them."""
    results = {name: asdict(verdicts[name]) for name in run.instance_ids if name in verdicts}
    text = json.dumps({**facts, "results": results}, indent=1) + "\n"
    write_whole(run.folder / EVAL_FILE, text)


def _described(
    run: SwebenchRun,
    facts: Mapping[str, Any],
    settled: Mapping[str, Verdict],
    num_kept: int,
    to_grade: Sequence[Instance],
) -> dict[str, Any]:
    """Return what --dry-run prints."""
    images = sorted(
        {str(one.raw["image"]) for one in to_grade} if facts["mode"] in CONTAINERS else ()
    )
    counts = Counter(verdict.status for verdict in settled.values())
    return {
        "dry_run": True,
        **{name: facts[name] for name in ("run_id", "policy", "mode", "harness_version")},
        "to_grade": len(to_grade),
        "graded_before": num_kept,
        **{status: counts[status] for status in ("empty", "error")},
        "disk": disk_needed(len(images), run.folder),
        "images": images,
    }
