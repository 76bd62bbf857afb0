"""mini-swe-agent's own tests: in a checkout given by the user, or in its source distribution."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

VERSION = version("mini-swe-agent")


def fetch_sdist(cache: Path) -> Path:
    """The unpacked source distribution of the installed version; downloaded the first time.

    Unpacked next to it and moved into place, so an interrupted run leaves nothing half done.
    Raises subprocess.CalledProcessError when pip fails.
    """
    unpacked = cache / f"mini_swe_agent-{VERSION}"
    if unpacked.is_dir():
        return unpacked
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        pip = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check"]
        what = ["--no-deps", "--no-binary", "mini-swe-agent", f"mini-swe-agent=={VERSION}"]
        subprocess.run([*pip, "download", *what, "--dest", scratch], check=True)
        (archive,) = Path(scratch).glob("*.tar.gz")
        with tarfile.open(archive) as members:
            members.extractall(scratch, filter="data")
        (Path(scratch) / unpacked.name).rename(unpacked)
    return unpacked


def tests_in(source: Path, files: tuple[str, ...]) -> list[str]:
    """Those of the wanted test files that a source tree has."""
    return [name for name in files if (source / name).is_file()]
