"""vLLM's own tests, taken from its source distribution into a cache folder, never committed."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "0.32.0"
BUILD_TOOLS = ("setuptools_rust", "setuptools_scm")
"""What vLLM's setup.py imports before pip gets the metadata it insists on, in addition to torch."""


def fetch_tests(cache: Path) -> Path:
    """The folder that holds vLLM's `tests` package; downloads 45 MB the first time.

    Unpacked next to it and moved into place, so an interrupted run leaves nothing half done.
    Raises subprocess.CalledProcessError when pip fails.
    """
    unpacked = cache / f"vllm-{VERSION}"
    if unpacked.is_dir():
        return unpacked
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        archive = _download(Path(scratch))
        with tarfile.open(archive) as members:
            wanted = [
                member
                for member in members
                if member.name.startswith(f"vllm-{VERSION}/tests/") and member.name.endswith(".py")
            ]
            members.extractall(scratch, wanted, filter="data")
        (Path(scratch) / unpacked.name).rename(unpacked)
    return unpacked


def _download(folder: Path) -> Path:
    """Let pip fetch the sdist from the index it is set up for, without building anything.

    pip downloads no sdist without running its `setup.py` for metadata: VLLM_TARGET_DEVICE=empty
    keeps that from looking for a compiler, and the version override from adding a suffix which
    pip would take for another version.
    """
    tools = folder / "build-tools"
    pip = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check"]
    target = ["--target", str(tools), "--no-warn-conflicts"]
    subprocess.run([*pip, "install", *target, *BUILD_TOOLS], check=True)
    download = ["download", "--no-deps", "--no-binary", "vllm", "--no-build-isolation"]
    subprocess.run(
        [*pip, *download, f"vllm=={VERSION}", "--dest", str(folder)],
        check=True,
        env={
            **os.environ,
            "PYTHONPATH": str(tools),
            "VLLM_TARGET_DEVICE": "empty",
            "VLLM_VERSION_OVERRIDE": VERSION,
        },
    )
    return folder / f"vllm-{VERSION}.tar.gz"
