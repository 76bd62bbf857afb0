"""The tests of other projects, from their source distributions into a cache, never committed."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

VLLM_VERSION = "0.32.0"
MINI_SWE_VERSION = version("mini-swe-agent")
BUILD_TOOLS = ("setuptools_rust", "setuptools_scm")
"""What vLLM's setup.py imports before pip gets the metadata it insists on, in addition to torch."""
PIP = (sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check")


def fetch_vllm(cache: Path) -> Path:
    """The folder that holds vLLM's `tests` package; downloads 45 MB the first time.

    pip downloads no sdist without running its `setup.py` for metadata: VLLM_TARGET_DEVICE=empty
    keeps that from looking for a compiler, and the version override from adding a suffix which
    pip would take for another version.
    """
    tools = cache / "build-tools"
    environment = {"PYTHONPATH": str(tools), "VLLM_TARGET_DEVICE": "empty"}
    environment |= {"VLLM_VERSION_OVERRIDE": VLLM_VERSION}
    if not tools.is_dir():
        target = ("--target", str(tools), "--no-warn-conflicts")
        subprocess.run([*PIP, "install", *target, *BUILD_TOOLS], check=True)
    return _fetch("vllm", VLLM_VERSION, cache, "--no-build-isolation", environment=environment)


def fetch_mini_swe(cache: Path) -> Path:
    """The folder of mini-swe-agent's tests, empty if its source distribution lacks them."""
    return _fetch("mini-swe-agent", MINI_SWE_VERSION, cache)


def _fetch(
    name: str, its_version: str, cache: Path, *flags: str, environment: Mapping[str, str] = {}
) -> Path:
    """Let pip fetch an sdist from the index it is set up for, without building anything.

    Unpacked next to it and moved into place, so an interrupted run leaves nothing half done.
    Raises subprocess.CalledProcessError when pip fails.
    """
    unpacked = cache / f"{name.replace('-', '_')}-{its_version}"
    if unpacked.is_dir():
        return unpacked
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        what = ("--no-deps", "--no-binary", name, *flags, f"{name}=={its_version}")
        subprocess.run(
            [*PIP, "download", *what, "--dest", scratch],
            check=True,
            env={**os.environ, **environment},
        )
        (archive,) = Path(scratch).glob("*.tar.gz")
        found = Path(scratch) / unpacked.name
        found.mkdir()
        with tarfile.open(archive) as members:
            # Not the project's package, which would be imported in place of the installed one.
            tests = [m for m in members if m.name.startswith(f"{unpacked.name}/tests/")]
            members.extractall(scratch, tests, filter="data")
        found.rename(unpacked)
    return unpacked
