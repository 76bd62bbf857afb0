"""Tests the newest versions of every framework, and writes what was seen into the docs.

`make test-frameworks`. The frameworks do not fit into one environment, so each group gets its own,
which holds agentkv's dependencies and no vLLM. Exit status 1 if any test fails. The last line is
one JSON document.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
BEGIN, END = "<!-- frameworks: written by make test-frameworks -->", "<!-- frameworks: end -->"

GROUPS: Mapping[str, tuple[str, ...]] = {
    "openai-3": (
        "openai>=3",
        "openai-agents",
        "langchain",
        "langchain-openai",
        "langgraph",
        "pydantic-ai-slim[openai]",
        "inspect-ai",
    ),
    "openai-2": (
        "openai<3",
        "agent-framework-openai",
        "agno",
        "anthropic",
        "dspy",
        "google-adk",
        "haystack-ai",
        "instructor",
        # 1.106 wants mcp 2, ADK and Strands mcp 1: its calls then fail
        "litellm<1.106",
        "llama-index-llms-openai-like",
        "mini-swe-agent",
        "smolagents[openai]",
        # without a least version pip takes 0.1.3, which asks for less
        "strands-agents[openai]>=1.62",
    ),
    "crewai": ("crewai",),
}
"""Environment -> what is installed into it, in addition to agentkv's own dependencies."""

TRAINERS: tuple[str, ...] = (
    *("openrlhf", "openpipe-art", "ray", "polars", "peft", "torchdata", "loguru", "jaxtyping"),
    "pylatexenc",
)
"""What their trainers' loops import, without GPU and vLLM. They pin versions of torch that no other
package here has, so they come without dependencies, next to the packages of this environment."""

SDKS = {
    "openai": ("OpenAI SDK", "openai", "", "also 3.x; any other client of it"),
    "anthropic": ("Anthropic SDK", "anthropic", "anthropic_stream", ""),
    "litellm": (
        "litellm",
        "litellm litellm_async litellm_openai",
        "litellm_stream",
        "`hosted_vllm/` and `openai/`, sync and async",
    ),
    "instructor": ("instructor", "instructor", "", ""),
}
"""Distribution -> name, cases, streamed cases, notes."""

AT_ONCE = {"parallel": "", "many": ""}
"""Parallel calls and runs: the table names them where they fail."""


def install(group: str, cache: Path) -> Path:
    """The Python of a group's environment, with the newest versions."""
    python = cache / group / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", cache / group], check=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pip = [python, "-m", "pip", "-qq", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, "--upgrade", *project["dependencies"], *GROUPS[group]], check=True)
    return python


def install_trainers(cache: Path) -> Path:
    """The Python of the trainers' environment."""
    python = cache / "trainers" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", cache / "trainers"], check=True)
    here = sysconfig.get_path("purelib")
    paths = {"base": str(cache / "trainers"), "platbase": str(cache / "trainers")}
    Path(sysconfig.get_path("purelib", vars=paths), "others.pth").write_text(f"{here}\n")
    pip = [python, "-m", "pip", "-qq", "--disable-pip-version-check", "install", "--no-deps"]
    subprocess.run([*pip, "--upgrade", *TRAINERS], check=True)
    return python


def run_tests(pythons: list[Path], report: Path) -> int:
    """Run the tests of all groups; writes a report of each."""
    paths = os.pathsep.join(map(str, pythons))
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "tests/frameworks"]
    environment = {**os.environ, "FRAMEWORK_PYTHONS": paths}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def outcomes(report: Path) -> dict[tuple[str, str], bool]:
    """(test, parameters) -> whether it passed; those that were skipped are left out."""
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        test, _, parameters = case.attrib["name"].partition("[")
        if case.find("skipped") is None:
            found[test, parameters.rstrip("]")] = len(case) == 0
    return found


class Row:
    """The cells of one framework."""

    def __init__(self, passed: Mapping[tuple[str, str], bool], distribution: str) -> None:
        self._passed = {
            parameters.removeprefix(f"{distribution}-"): is_passed
            for (test, parameters), is_passed in passed.items()
            if test == "test_a_run_is_a_job_with_its_tools"
            and parameters.startswith(f"{distribution}-")
        }

    def cell(self, **names: str) -> str:
        """What is named for those of the cases that passed; those that failed are said to."""
        words: dict[str, None] = {}
        for case, is_passed in self._passed.items():
            kind = case.split("_")[0]
            if kind in names:
                words[names[kind] if is_passed else f"**{case} fails**"] = None
        return ", ".join(filter(None, words)) or "-"


def table(passed: Mapping[tuple[str, str], bool], versions: Mapping[str, str]) -> str:
    """The tables of frameworks and of SDKs, in Markdown."""
    catalog = tomllib.loads((Path(__file__).parent / "frameworks.toml").read_text())
    without = defaultdict(list)
    for (test, parameters), is_passed in passed.items():
        if test in (
            "test_one_line_does_the_same",
            "test_without_the_plugin_there_is_one_warning",
            "test_a_dead_server_ends_a_run_as_without_agentkv",
        ):
            without[re.sub("-(stock|strict)$", "", parameters)].append(is_passed)
    lines = [
        "| framework | version | runs | streamed | child jobs | released after | notes |",
        "|---|---|---|---|---|---|---|",
    ]
    for distribution, entry in catalog.items():
        row = Row(passed, distribution)
        cells = [
            entry["name"],
            versions.get(distribution, "not installed"),
            row.cell(sync="sync", code="sync", bash="sync", crew="sync", chat="sync", **AT_ONCE)
            if row.cell(**{"async": "x"}) == "-"
            else row.cell(sync="sync", chat="sync", crew="sync", **{"async": "async"}, **AT_ONCE),
            row.cell(stream="yes", iterated="yes"),
            row.cell(children="in tools", handoff="handoffs", crew="tasks"),
            row.cell(
                **dict.fromkeys(("sync", "async", "bash"), "end"), fails="error", cancelled="cancel"
            ),
            entry["notes"] if all(without[distribution]) else "**affected without the plugin**",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "Without runs to see, `agentkv run --job` makes a whole program one job:",
        "",
        "| library | version | turns | streamed | notes |",
        "|---|---|---|---|---|",
    ]
    for distribution, (name, cases, streamed, notes) in SDKS.items():
        seen = {
            case: passed.get(("test_a_program_without_runs_is_one_job", case))
            for case in [*cases.split(), *streamed.split()]
        }
        turns = "tagged" if all(seen[case] for case in cases.split()) else "**fails**"
        stream = "-" if not streamed else "yes" if seen[streamed] else "**fails**"
        version = versions.get(distribution, "not installed")
        lines.append(f"| {name} | {version} | {turns} | {stream} | {notes} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=ROOT / ".frameworks")
    parser.add_argument("--no-install", action="store_true", help="take what the cache holds")
    arguments = parser.parse_args()
    cache = arguments.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    pythons = [
        cache / group / "bin" / "python" if arguments.no_install else install(group, cache)
        for group in GROUPS
    ]
    pythons.append(
        cache / "trainers" / "bin" / "python" if arguments.no_install else install_trainers(cache)
    )
    report = cache / "report.xml"
    status = run_tests(pythons, report)
    os.environ["FRAMEWORK_PYTHONS"] = os.pathsep.join(map(str, pythons))
    from tests.frameworks.program_runs import versions

    found = {name: version for name, (version, _) in versions().items()}
    passed = outcomes(report)
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(passed, found)}\n{END}{after}")
    counts = {"passed": sum(passed.values()), "failed": len(passed) - sum(passed.values())}
    print(json.dumps({"page": str(PAGE.relative_to(ROOT)), **counts, "status": status}))
    return int(status != 0)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    raise SystemExit(main())
