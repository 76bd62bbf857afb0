"""What there is to grade in a run: verdicts that need no tests, and patches that do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .eval_results import Verdict, patch_sha256
from .grading import obstacle
from .instances import Instance
from .report_runs import SwebenchRun


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """`settled` needs no tests; `kept` was graded before, the patch being the same."""

    settled: Mapping[str, Verdict]
    kept: Mapping[str, Verdict]
    to_grade: Sequence[Instance]
    predictions: Mapping[str, Mapping[str, str]]


def plan(
    run: SwebenchRun,
    instances: Mapping[str, Instance],
    earlier: Mapping[str, Verdict],
    *,
    needs_image: bool,
) -> EvalPlan:
    """Every instance of the run in exactly one of the three; errors of before are tried again."""
    settled: dict[str, Verdict] = {}
    kept: dict[str, Verdict] = {}
    to_grade: list[Instance] = []
    for instance_id in run.instance_ids:
        digest = patch_sha256(run.patch(instance_id))
        instance = instances.get(instance_id)
        if instance is None:
            settled[instance_id] = Verdict("error", "the dataset lacks this instance", digest)
        elif (known := _settled(run, instance, needs_image=needs_image)) is not None:
            settled[instance_id] = replace(known, patch_sha256=digest)
        elif (before := earlier.get(instance_id)) is not None and _counts(before, digest):
            kept[instance_id] = before
        else:
            to_grade.append(instance)
    predictions = {
        instance.instance_id: {
            "model_name_or_path": run.policy,
            **run.predictions[instance.instance_id],
            "instance_id": instance.instance_id,
        }
        for instance in to_grade
    }
    return EvalPlan(settled, kept, to_grade, predictions)


def _counts(before: Verdict, digest: str) -> bool:
    return before.status in ("resolved", "unresolved") and before.patch_sha256 == digest


def _settled(run: SwebenchRun, instance: Instance, *, needs_image: bool) -> Verdict | None:
    instance_id = instance.instance_id
    row = run.rows.get(instance_id, {})
    if instance_id not in run.predictions and not row:
        return Verdict("error", "not run: the run ended before it came to this instance")
    if not run.patch(instance_id).strip():
        if row.get("error"):
            return Verdict("error", f"the agent failed: {row['error']}")
        return Verdict("empty", f"no patch; the agent ended with {row.get('exit_status')}")
    reason = obstacle(instance, needs_image=needs_image)
    return None if reason is None else Verdict("error", reason)
