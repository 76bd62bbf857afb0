"""The code blocks of README, tutorial, how-to pages and quick starts run as they are written.

A block behind `<!-- not run: REASON -->` is left out, and commands of vLLM are checked by vLLM's
own parser. All others run against a real server, in one folder a page; the tutorial's on its own.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentkv.coding_agents import settings_of
from agentkv.integrations.vllm.watch.counters import COUNTERS, HISTOGRAMS
from agentkv.policies.names import STOCK_POLICIES, default_settings, read_settings
from agentkv.policies.pins import ENDINGS, PIN_ENDS
from agentkv.protocol.foreign import SOURCES
from agentkv.server.process import HTTPProcess, ServerProcess, free_port
from tests.forks import forked_commands

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PYTHONS = Path(sys.executable).parent
LONG_PAGES = ("simulate", "swebench", "train-agents", "troubleshoot", "write-a-policy")
"""What they run takes seconds, and other tests run it, too."""
PAGES = [
    pytest.param(page, id=page.stem, marks=[pytest.mark.long] if page.stem in LONG_PAGES else [])
    for folder in ("how-to", "quick-start")
    for page in sorted((DOCS / folder).glob("*.md"))
]
BLOCK = re.compile(
    r"^(?:<!--(?P<note>[^>]*)-->\n)?```(?P<language>bash|python)\n(?P<code>.*?)^```$", re.M | re.S
)
SERVER_URL = re.compile(r"http://(?:127\.0\.0\.1|localhost):8000")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page, and the comment in front of it."""

    language: str
    code: str
    note: str

    @property
    def runs(self) -> bool:
        """True unless the page says why it does not."""
        return not self.note.startswith(("not run", "flags", "the server"))


def blocks_of(page: Path) -> list[Block]:
    return [
        Block(found["language"], found["code"], (found["note"] or "").strip())
        for found in BLOCK.finditer(page.read_text(encoding="utf-8"))
    ]


def program(page: Path) -> str:
    """The page's Python blocks, in order, as one program."""
    return "\n".join(x.code for x in blocks_of(page) if x.language == "python" and x.runs)


def script(page: Path) -> str:
    """The page's shell blocks, in order, as one script; what pip would install is there already."""
    lines = [
        line
        for each in blocks_of(page)
        if each.language == "bash" and each.runs
        for line in each.code.splitlines()
        if not line.startswith("pip install")
    ]
    return "\n".join(["set -euo pipefail", *lines])


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the path, whose `agentkv` has vLLM already."""
    folder = tmp_path_factory.mktemp("commands")
    with forked_commands(folder):
        yield folder


@pytest.mark.server
@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, commands: Path, routes_server: ServerProcess
) -> None:
    """Every block of a page, Python first, ends without an error on a real server."""
    environment = os.environ | {
        "PATH": os.pathsep.join(map(str, (commands, PYTHONS, os.environ["PATH"]))),
        "PYTHONPATH": str(ROOT),
    }
    for name, text in (("page.py", program(page)), ("page.sh", script(page))):
        path = tmp_path / name
        path.write_text(SERVER_URL.sub(routes_server.root_url, text), encoding="utf-8")
        done = subprocess.run(
            [sys.executable if name == "page.py" else "bash", path],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def test_the_page_on_policies_shows_the_template() -> None:
    """What the page writes into mine.py is the file in examples/policies."""
    template = (ROOT / "examples" / "policies" / "mine.py").read_text(encoding="utf-8")
    assert f"cat > mine.py <<'EOF'\n{template}EOF\n" in script(DOCS / "how-to/write-a-policy.md")


@pytest.mark.server
def test_the_tutorial_keeps_its_promises(tmp_path: Path) -> None:
    """On the page's own server, started by its own command, its program and the README's find their
    prompts in the cache and run tools, and what comes after shows the job that has ended."""
    page, port = DOCS / "tutorial.md", free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {"PATH": f"{PYTHONS}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    (started,) = (block.code for block in blocks_of(page) if block.note.startswith("the server"))
    assert started.count("--port 8000") == 1
    server = HTTPProcess(
        shlex.split(started.replace("--port 8000", f"--port {port}")),
        name="the page's server",
        port=port,
        log_path=tmp_path / "server.log",
        environment=environment,
    )
    for name, shown in (("readme.py", ROOT / "README.md"), ("agent.py", page)):
        (tmp_path / name).write_text(SERVER_URL.sub(url, program(shown)), encoding="utf-8")
    with server:
        done = subprocess.run(
            [
                "bash",
                "-c",
                f"python readme.py\npython agent.py\n{SERVER_URL.sub(url, script(page))}",
            ],
            cwd=tmp_path,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    for promise in (
        r"(?s)(^cached tokens +[1-9].*){2}",
        r"(?s)(^tool time [^\n]*\([1-9]\d* calls?\).*){2}",
        r"^tutorial +2( +\S+){3} +[1-9]\d*% .* released$",
        r"^job tutorial$",
    ):
        assert re.search(promise, done.stdout, re.M), f"{promise}\n{done.stdout}"


@pytest.mark.slow
def test_commands_of_vllm_take_the_flags_that_the_pages_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each `vllm serve` line of the pages parses, and its settings are valid."""
    # vLLM, which the rest of this file does without
    from agentkv.integrations.vllm import plugin
    from tests.integrations.vllm.vllm_names import serve_parser

    (tmp_path / "mine.py").write_text(
        "from agentkv.policies import Policy, Settings\n"
        "class MineSettings(Settings):\n    hold_s: float = 5.0\n"
        "class Mine(Policy):\n    settings_class = MineSettings\n"
    )
    commands = [
        shlex.split(line, comments=True)
        for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
        for block in blocks_of(page)
        if block.language == "bash"
        for line in block.code.replace("\\\n", " ").splitlines()
        if line.startswith("vllm serve")
    ]
    assert len(commands) >= 5
    monkeypatch.chdir(tmp_path)
    plugin.register()
    parser = serve_parser()
    for command in commands:
        given = parser.parse_args(command[3:])  # behind `vllm serve MODEL`
        if given.scheduling_policy not in STOCK_POLICIES:
            settings = (given.additional_config or {}).get("agentkv")
            read_settings(settings, policy=given.scheduling_policy)


@pytest.mark.parametrize(
    ("page", "agent"), [("claude-code", "claude"), ("codex", "codex"), ("opencode", "opencode")]
)
def test_quick_starts_show_what_run_prints(page: str, agent: str) -> None:
    """The file to copy is the one that `agentkv run --print` prints, or has its variables."""
    text = (DOCS / f"quick-start/{page}.md").read_text(encoding="utf-8")
    shown = settings_of(agent, "http://127.0.0.1:8000", "MODEL")
    (block,) = re.findall(r"^```(?:json|toml)\n(.*?)^```$", text, re.M | re.S)
    if shown.text is None:
        assert json.loads(block) == {"env": shown.environment}
    else:
        assert block.strip() == shown.text


def test_llms_txt_lists_each_page() -> None:
    """The index for language models has a link to each page, and no other."""
    links = re.findall(r"\]\(([^)]+\.md)\)", (DOCS / "llms.txt").read_text(encoding="utf-8"))
    assert sorted(links) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_the_settings_page_has_each_setting_with_its_default() -> None:
    """A row for each setting of each policy, with the default that its class has."""
    rows = dict(
        re.findall(
            r"^\| `(\w+)` \| ([^|]+?) \|", (DOCS / "reference/settings.md").read_text(), re.M
        )
    )
    defaults = default_settings()
    assert rows.keys() == defaults.keys() - {"policy"}
    for name, row in rows.items():
        default, shown = defaults[name], row.strip("`")
        if default is None or name == "predictor":
            assert shown in ("none", "measured", "by policy")
        else:
            assert shown in (str(default), json.dumps(default)), name


def test_the_page_on_missed_turns_has_the_table_of_ends() -> None:
    """What ended a hold, what a miss says and what listeners hear stand as the code has them."""
    page = (DOCS / "how-to/why-a-turn-missed.md").read_text(encoding="utf-8")
    rows = ["| what ended the pin | in words | what the miss says | what a listener hears |"]
    rows.append("|---|---|---|---|")
    for end in PIN_ENDS:
        miss, free, words = ENDINGS[end]
        said, heard = (f"`{each}`" if each else "nothing" for each in (miss, free))
        rows.append(f"| `{end}` | {words} | {said} | {heard} |")
    assert "\n{}\n".format("\n".join(rows)) in page


def test_the_page_of_wire_fields_has_the_table_of_foreign_ones() -> None:
    """What is read of other software stands as the code has it."""
    page = (DOCS / "reference/wire.md").read_text(encoding="utf-8")
    rows = ["| sent by | in | field=reading |", "|---|---|---|"]
    for sent_by, place, fields in SOURCES:
        read = ", ".join(f"`{path}`={reading}" for path, reading in fields)
        rows.append(f"| {sent_by} | {place} | {read} |")
    table = "\n".join(rows)
    assert f"\n{table}\n" in page


def test_the_metrics_page_has_a_row_for_each_series() -> None:
    """Each counter and histogram that is declared is named on the page of metrics."""
    page = (DOCS / "reference/metrics.md").read_text(encoding="utf-8")
    assert [name for name in (*COUNTERS, *HISTOGRAMS) if f"`{name}" not in page] == []


def test_links_of_the_readme_lead_to_files() -> None:
    """Each relative link of the README names a file of the repository."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_readme_fits_on_two_screens() -> None:
    """The README has at most 5,500 bytes; all else is a page of the docs."""
    assert (ROOT / "README.md").stat().st_size <= 5500
