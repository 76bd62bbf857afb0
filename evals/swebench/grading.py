"""Grades the patches of a run, and keeps a verdict with its reason for each instance.

Every rule about tests is the official harness's; this module decides what needs grading, names what
would break the harness or fool it, and keeps `eval.json`. `harness` runs the tests.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..rows import provenance, write_whole
from .environments import find_repository
from .folder import EVAL_FILE, EVAL_FOLDER, REPOSITORIES, SwebenchRun, read_object, read_run
from .harness import STATUSES, ContainerHarness, LocalHarness, Verdict
from .instances import (
    CONTAINERS,
    DAEMON_LESS,
    TIME_LIMIT_S,
    Instance,
    SwebenchError,
    fingerprint,
    load_instances,
)
from .plan import disk_needed

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
    facts = {
        "mode": mode,
        "harness_version": version("swebench"),
        "dataset_sha256": fingerprint(
            [instances[name] for name in run.instance_ids if name in instances]
        ),
        "run_id": run.run_id,
        "policy": run.policy,
        **provenance("swebench", "docker"),
    }
    before, earlier = (None if is_redone else read_eval(folder)) or ({}, {})
    if any(before.get(name) != facts[name] for name in _SAME):
        earlier = {}
    verdicts: dict[str, Verdict] = {}
    to_grade: list[Instance] = []
    for name in run.instance_ids:
        known = _settled(run, name, instances.get(name), needs_image=mode in CONTAINERS)
        digest, old = patch_sha256(run.patch(name)), earlier.get(name)
        if known is not None:
            verdicts[name] = replace(known, patch_sha256=digest)
        elif old is not None and old.status != "error" and old.patch_sha256 == digest:
            verdicts[name] = old
        else:
            to_grade.append(instances[name])
    counts = Counter(verdict.status for verdict in verdicts.values())
    num_kept = counts["resolved"] + counts["unresolved"]
    if is_dry:
        needed = to_grade if mode in CONTAINERS else []
        images = sorted({str(one.raw["image"]) for one in needed})
        return {
            "dry_run": True,
            **{name: facts[name] for name in ("run_id", "policy", "mode", "harness_version")},
            "to_grade": len(to_grade),
            "graded_before": num_kept,
            **{status: counts[status] for status in ("empty", "error")},
            "disk": disk_needed(len(images), folder),
            "images": images,
        }
    home = folder / EVAL_FOLDER / mode
    harness: LocalHarness | ContainerHarness
    if mode == DAEMON_LESS:
        find = partial(find_repository, given=repositories, suite_folder=home / REPOSITORIES)
        harness = LocalHarness(home, workers, time_limit_s, find)
    else:
        harness = ContainerHarness(home, workers, time_limit_s, mode, run.run_id)
    if to_grade:
        harness.check()
    _write_eval(run, facts, verdicts)
    say(f"{len(to_grade)} patches to grade, {num_kept} graded before ({mode})")
    if to_grade:
        predictions = {
            name: {"model_name_or_path": run.policy, **run.predictions[name], "instance_id": name}
            for name in (one.instance_id for one in to_grade)
        }
        # closed at once if this is interrupted, not whenever it is collected
        with closing(harness.grade(to_grade, predictions)) as graded:
            for number, (name, verdict) in enumerate(graded, start=1):
                verdicts[name] = replace(verdict, patch_sha256=patch_sha256(run.patch(name)))
                _write_eval(run, facts, verdicts)
                why = f": {verdict.detail}" if verdict.detail else ""
                say(f"[{number}/{len(to_grade)}] {name} {verdict.status}{why}")
    counts = Counter(verdict.status for verdict in verdicts.values())
    return {
        "instances": len(run.instance_ids),
        **{status: counts[status] for status in STATUSES},
        "policy": run.policy,
        "mode": mode,
        "run": str(folder),
    }


def read_eval(folder: Path) -> tuple[dict[str, Any], dict[str, Verdict]] | None:
    """Read `eval.json`: its facts and its verdicts; None if there is none.

    Raises SwebenchError if the file is damaged.
    """
    path = folder / EVAL_FILE
    if (document := read_object(path)) is None:
        return None
    try:
        verdicts = {name: Verdict(**entry) for name, entry in document.pop("results").items()}
        if unknown := {verdict.status for verdict in verdicts.values()} - set(STATUSES):
            raise ValueError(f"unknown status {sorted(unknown)}")
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise SwebenchError(
            f"{path}: is no evaluation ({error}): grade again with --redo"
        ) from error
    return document, verdicts


def patch_sha256(patch: str) -> str:
    """Return what tells one patch from another in `eval.json`."""
    return hashlib.sha256(patch.encode(errors="surrogatepass")).hexdigest()


def _settled(
    run: SwebenchRun, name: str, instance: Instance | None, *, needs_image: bool
) -> Verdict | None:
    """Return the verdict that needs no tests; None if the patch has to be graded."""
    if instance is None:
        return Verdict("error", "the dataset lacks this instance")
    row = run.rows.get(name)
    if row is None and name not in run.predictions:
        return Verdict("error", "not run: the run ended before it came to this instance")
    if not run.patch(name).strip():
        if row and row.get("error"):
            return Verdict("error", f"the agent failed: {row['error']}")
        return Verdict("empty", f"no patch; the agent ended with {(row or {}).get('exit_status')}")
    raw = instance.raw
    texts = (*_TEXTS, "image") if needs_image else _TEXTS
    is_there = {field: isinstance(raw.get(field), str) and raw[field] for field in texts}
    is_there["version"] = "version" in raw
    is_there["PASS_TO_PASS"] = raw.get("PASS_TO_PASS") not in (None, "")
    if missing := [field for field, is_good in is_there.items() if not is_good]:
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
