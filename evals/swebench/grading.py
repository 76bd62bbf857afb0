"""Verdicts by the official harness's own code: what it can grade, and what its report means.

Every rule about tests is swebench's; this module only turns its inputs and outputs into ours, and
names what would break it or fool it. swebench takes 4 s to import: it is imported when used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .errors import HarnessError, SwebenchError
from .eval_results import Verdict
from .instances import Instance

_TEXTS = ("eval_script", "log_parser", "eval_type")
"""Fields without which, as without a version and PASS_TO_PASS, a whole batch ends in an exception.

Source: swebench 5.0.2, harness/utils.py, make_test_spec.
"""


def harness_version() -> str:
    """Version of the official harness; raises SwebenchError where it is not installed."""
    try:
        return version("swebench")
    except PackageNotFoundError as error:
        raise SwebenchError(
            "the official harness is missing: run `pip install 'agentkv-serving[swebench]'`"
        ) from error


def obstacle(instance: Instance, *, needs_image: bool) -> str | None:
    """Why this instance cannot be graded at all; None if it can.

    The harness counts an instance without FAIL_TO_PASS tests as resolved whatever the patch does
    (compute_fail_to_pass of an empty list is 1), so that is caught here.
    """
    raw = instance.raw
    texts = (*_TEXTS, "image") if needs_image else _TEXTS
    is_there = {name: isinstance(raw.get(name), str) and raw[name] for name in texts}
    is_there["version"] = "version" in raw
    is_there["PASS_TO_PASS"] = raw.get("PASS_TO_PASS") not in (None, "")
    if missing := [name for name, is_good in is_there.items() if not is_good]:
        return f"the instance lacks {', '.join(missing)}"
    if not instance.fail_to_pass:
        return "the instance has no FAIL_TO_PASS tests: nothing can show that it is resolved"
    return None


def graded(instance: Instance, prediction: Mapping[str, Any], log_path: Path) -> dict[str, Any]:
    """The harness's report on a test log: `get_eval_report`, as it is, for this one instance.

    Raises HarnessError where the harness fails (an unknown log parser, say).
    """
    from swebench.harness.grading import get_eval_report

    with _failures_named():
        reports = get_eval_report(
            test_spec=test_spec(instance),
            prediction=dict(prediction),
            test_log_path=str(log_path),
            include_tests_status=True,
        )
    report: dict[str, Any] = reports[instance.instance_id]
    return report


def test_spec(instance: Instance) -> Any:
    """The harness's TestSpec; its `eval_script` also records the exit status of the tests.

    Raises HarnessError where a field of the instance is not what the harness takes.
    """
    from swebench.harness.utils import make_test_spec

    with _failures_named():
        return make_test_spec({"image": None, **instance.raw})


def verdict(report: Mapping[str, Any]) -> Verdict:
    """What the harness's report on one instance says."""
    if report["resolved"]:
        return Verdict("resolved")
    if not report["patch_successfully_applied"]:
        reason = report.get("infra_failure_reason")
        told = f" ({reason})" if reason else ""
        return Verdict("unresolved", f"no readable test output{told}")
    tests = report.get("tests_status", {})
    return Verdict("unresolved", "; ".join(_failures(tests)) or "tests fail")


def _failures(tests: Mapping[str, Mapping[str, Sequence[str]]]) -> list[str]:
    found = []
    for kind in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        failed = tests.get(kind, {}).get("failure", [])
        total = len(failed) + len(tests.get(kind, {}).get("success", []))
        if failed:
            found.append(f"{len(failed)} of {total} {kind} fail, first {failed[0]}")
    return found


@contextmanager
def _failures_named() -> Iterator[None]:
    """What an odd field or an odd log makes the harness raise is about that instance alone."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise HarnessError(f"the harness: {type(error).__name__}: {error}") from error


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """The harness's report beside the log it is about."""
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
