"""Which code and which packages a result came from."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import agentkv

PACKAGES = ("lightgbm", "numpy", "tree-sitter", "tree-sitter-bash")
"""What every result may depend on; each kind of measurement adds its own."""


def provenance(*packages: str) -> dict[str, Any]:
    """The commit of the working tree this file is in (None outside of one), and the versions of
    agentkv, Python, PACKAGES and `packages`, as far as they are installed."""
    found = {name: _version(name) for name in (*PACKAGES, *packages)}
    return {
        "commit": _commit(),
        "versions": {
            "agentkv": agentkv.__version__,
            "python": platform.python_version(),
            **{name: number for name, number in found.items() if number is not None},
        },
    }


def time_stamp() -> str:
    """Now in UTC, for the name of a folder that nobody named."""
    return datetime.now(UTC).strftime("%Y%m%d-%H%M%S")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        asked = [*git, "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
        changed = [*git, "status", "--porcelain", "--untracked-files=no"]
        done = subprocess.run(changed, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit}-dirty" if done.stdout.strip() else commit
