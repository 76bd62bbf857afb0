"""Which code made a row: while a policy is being tuned, a commit does not tell."""

from __future__ import annotations

import hashlib
from pathlib import Path

import agentkv

_ROOMS = ("integrations/vllm", "evals/simulation", "evals/workload", "evals/study")


def code_digest() -> str:
    """A digest of the sources that decide a simulation's result."""
    root = Path(__file__).parents[2]
    folders = [Path(agentkv.__file__).parent, *(root / room for room in _ROOMS)]
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            digest.update(str(path.relative_to(folder)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
