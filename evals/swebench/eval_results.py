"""`eval.json` of a run: what came of each instance's patch, and which patch that was.

Written whole after every instance, beside its place and then moved there, so that an interrupted
evaluation keeps what it has. Knows nothing about how patches are graded.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from .errors import SwebenchError

EVAL_FILE = "eval.json"
Status = Literal["resolved", "unresolved", "empty", "error"]
STATUSES: tuple[Status, ...] = ("resolved", "unresolved", "empty", "error")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`detail` says why, for every status but `resolved`; the hash is of the patch graded."""

    status: Status
    detail: str = ""
    patch_sha256: str = ""


def patch_sha256(patch: str) -> str:
    """What tells one patch from another in `eval.json`."""
    return hashlib.sha256(patch.encode(errors="surrogatepass")).hexdigest()


class EvalFile:
    """The verdicts of one run, in the order of its instances; safe to use from several threads."""

    def __init__(
        self, folder: Path, mode: str, instance_ids: Sequence[str], facts: Mapping[str, Any]
    ) -> None:
        self.path = folder / EVAL_FILE
        self._document = {"mode": mode, **facts}
        self._instance_ids = list(instance_ids)
        self._verdicts: dict[str, Verdict] = {}
        self._lock = threading.Lock()

    @property
    def verdicts(self) -> dict[str, Verdict]:
        with self._lock:
            return dict(self._verdicts)

    def add(self, instance_id: str, verdict: Verdict) -> None:
        """Keep one more verdict and write the file; OSError where the disk is full."""
        with self._lock:
            self._verdicts[instance_id] = verdict
            self._write()

    def keep(self, verdicts: Mapping[str, Verdict]) -> None:
        """Take over verdicts of an earlier evaluation."""
        with self._lock:
            self._verdicts |= verdicts
            self._write()

    def _write(self) -> None:
        results = {
            instance_id: asdict(self._verdicts[instance_id])
            for instance_id in self._instance_ids
            if instance_id in self._verdicts
        }
        partial = self.path.with_name(f".{EVAL_FILE}.{os.getpid()}")
        partial.write_text(json.dumps({**self._document, "results": results}, indent=1) + "\n")
        partial.replace(self.path)


def read_eval(folder: Path) -> tuple[dict[str, Any], dict[str, Verdict]] | None:
    """What `eval.json` says, apart from the verdicts, and these; None where there is none.

    Raises SwebenchError if the file cannot be read.
    """
    path = folder / EVAL_FILE
    if not path.exists():
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        verdicts = {
            instance_id: Verdict(
                entry["status"], entry.get("detail", ""), entry.get("patch_sha256", "")
            )
            for instance_id, entry in document.pop("results").items()
        }
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise SwebenchError(
            f"{path}: is no evaluation ({error}): grade again with --redo"
        ) from error
    unknown = {verdict.status for verdict in verdicts.values()} - set(STATUSES)
    if unknown:
        raise SwebenchError(f"{path}: unknown status {sorted(unknown)}: grade again with --redo")
    return document, verdicts
