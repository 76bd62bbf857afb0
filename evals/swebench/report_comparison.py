"""Graded runs put together: whether they may be compared, and how they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..figures.style import in_order
from .errors import SwebenchError
from .eval_results import Verdict, patch_sha256, read_eval
from .report_numbers import summarize
from .report_runs import SwebenchRun, read_run

CONTAINER_LABEL = "official harness, {mode}"
DAEMON_LESS_LABEL = "daemon-less: the eval script in bubblewrap, the harness's grading, no image"
_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """One run with its verdicts (None: not graded) and its numbers; `name` heads its column."""

    name: str
    run: SwebenchRun
    mode: str | None
    harness_version: str | None
    verdicts: Mapping[str, Verdict] | None
    summary: Mapping[str, Any]

    @property
    def graded_by(self) -> str:
        if self.mode is None:
            return "not graded"
        shape = DAEMON_LESS_LABEL if self.mode == "daemon-less" else CONTAINER_LABEL
        return f"{shape.format(mode=self.mode)} (swebench {self.harness_version})"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs on the same instances; ratios are to `baseline`."""

    runs: Sequence[ReportedRun]
    baseline: ReportedRun
    figures: Sequence[str] = ()

    def ratio(self, run: ReportedRun, name: str) -> float | None:
        """Of a number to the baseline's; None for the baseline itself, and without a number."""
        reference, value = self.baseline.summary[name], run.summary[name]
        return value / reference if run is not self.baseline and reference and value else None

    def resolved_apart(self, run: ReportedRun) -> tuple[int, int] | None:
        """Instances resolved only in `run`, only in the baseline; None unless all are graded."""
        if run.summary["pass_rate"] is None or self.baseline.summary["pass_rate"] is None:
            return None
        here, there = (_resolved(each.verdicts or {}) for each in (run, self.baseline))
        return len(here - there), len(there - here)

    def conditions(self) -> list[str]:
        """What was run, and what a reader must know before comparing."""
        documents = [run.run.document for run in self.runs]
        first = self.runs[0].run
        told = [
            f"{name.replace('_', ' ')} {_listed(documents, name)}"
            for name in ("model", "environment", "step_limit", "seed", "commit")
        ]
        facts = [
            f"{len(first.instance_ids)} instances of {_listed(documents, 'dataset')}",
            "; ".join([*told, f"load {', '.join(dict.fromkeys(map(_load, documents)))}"]),
            "JCT: seconds from an instance's start to its agent's end, of agents that ended",
        ]
        return [*facts, *self._warnings(documents)]

    def _warnings(self, documents: Sequence[Mapping[str, Any]]) -> list[str]:
        found = []
        if any(run.mode == "daemon-less" for run in self.runs):
            found.append(
                "**daemon-less grading**: not a result of the official evaluation, which runs in "
                "the instances' images"
            )
        if len({run.graded_by for run in self.runs}) > 1:
            found.append("**the runs were not graded alike**: see the row `graded`")
        for name in ("model", "environment", "step_limit", "seed", "workers", "jps"):
            if len({str(document.get(name)) for document in documents}) > 1:
                found.append(f"**the runs differ in {name}**: {_listed(documents, name)}")
        in_part = [
            f"{run.name}: {run.summary['not_graded']} patches"
            for run in self.runs
            if run.verdicts is not None and run.summary["not_graded"]
        ]
        if in_part:
            found.append(
                f"**not graded yet**, so no pass rate: {', '.join(in_part)}; "
                "`agentkv swebench eval` goes on with them"
            )
        unfinished = [run.name for run in self.runs if run.run.document.get("ended_at") is None]
        if unfinished:
            found.append(f"**not run to its end**: {', '.join(unfinished)}")
        return found


def compare(folders: Sequence[Path], baseline: str | None = None) -> Comparison:
    """Read the runs; raises SwebenchError if they are not of the same instances."""
    read = [read_run(folder) for folder in folders]
    for other in read[1:]:
        _check_same_instances(read[0], other)
    runs = [_reported(run, name) for run, name in zip(read, _names(read), strict=True)]
    order = in_order([run.run.policy for run in runs])
    runs.sort(key=lambda run: order.index(run.run.policy))
    if baseline is None:
        return Comparison(runs, runs[0])
    chosen = [run for run in runs if baseline in (run.name, run.run.policy)]
    if not chosen:
        allowed = ", ".join(run.name for run in runs)
        raise SwebenchError(f"--baseline: got {baseline!r}, the runs are {allowed}")
    return Comparison(runs, chosen[0])


def _reported(run: SwebenchRun, name: str) -> ReportedRun:
    found = read_eval(run.folder)
    if found is None:
        return ReportedRun(name, run, None, None, None, summarize(run, None))
    document, verdicts = found
    current = {
        instance_id: known
        for instance_id in run.instance_ids
        if (known := verdicts.get(instance_id)) is not None and _is_current(run, instance_id, known)
    }
    mode, version = document.get("mode"), document.get("harness_version")
    return ReportedRun(name, run, mode, version, current, summarize(run, current))


def _is_current(run: SwebenchRun, instance_id: str, known: Verdict) -> bool:
    """The verdict is of the patch that the run has now: a resumed run may have another."""
    return known.patch_sha256 == patch_sha256(run.patch(instance_id))


def _names(runs: Sequence[SwebenchRun]) -> list[str]:
    """The policy, and the run's id where several runs have the same one."""
    counts = Counter(run.policy for run in runs)
    return [run.policy if counts[run.policy] == 1 else f"{run.policy} {run.run_id}" for run in runs]


def _check_same_instances(first: SwebenchRun, other: SwebenchRun) -> None:
    apart = set(first.instance_ids) ^ set(other.instance_ids)
    if apart:
        named = ", ".join(sorted(apart)[:_MAX_NAMED])
        raise SwebenchError(
            f"{first.folder} and {other.folder} are not of the same instances: {len(apart)} are "
            f"in one only, such as {named}: run both on the same --slice and --filter"
        )
    shas = [run.document.get("dataset_sha256") for run in (first, other)]
    if shas[0] != shas[1]:
        raise SwebenchError(
            f"{first.folder} and {other.folder} are not of the same dataset: its sha256 is "
            f"{shas[0]} and {shas[1]}, so instances of one name may differ"
        )


def _resolved(verdicts: Mapping[str, Verdict]) -> set[str]:
    return {name for name, verdict in verdicts.items() if verdict.status == "resolved"}


def _listed(documents: Sequence[Mapping[str, Any]], name: str) -> str:
    return ", ".join(dict.fromkeys(str(document.get(name, "-")) for document in documents))


def _load(document: Mapping[str, Any]) -> str:
    if document.get("jps") is not None:
        return f"{document['jps']:g} jobs/s"
    return f"{document.get('workers')} at once"
