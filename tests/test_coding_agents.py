"""`agentkv run AGENT URL`: its text can be used as it is; wrong input is in test_wrong_inputs.py.

That the agents themselves take these settings was seen once with each one's own binary
(docs/reference/compatibility.md); no test installs them.
"""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from agentkv.cli import main
from agentkv.coding_agents import AGENTS, AgentSettings, settings_of
from tests.scripted_server import ScriptedServer

URL = "http://127.0.0.1:8000"
MODEL = "org/it's 7B"


def printed(capsys: pytest.CaptureFixture[str], agent: str, url: str = URL, *words: str) -> str:
    assert main(["run", agent, url, *words, "--print"]) == 0
    return capsys.readouterr().out


def settings(agent: str) -> AgentSettings:
    return settings_of(agent, URL, MODEL)


@pytest.mark.parametrize("agent", AGENTS)
def test_the_printed_text_is_what_the_agent_gets(
    agent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines for a shell set the environment, also to a name with quotes; a file comes whole."""
    found = settings(agent)
    text = printed(capsys, agent, URL, "--model", MODEL)
    if found.path:
        assert text == f"{found.text}\n"
    else:
        shell = f'cline() {{ echo cline "$@"; }}\n{text}\nenv'
        seen = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
        lines = seen.stdout.splitlines()
        for name, value in found.environment.items():
            assert f"{name}={value}" in lines
        if found.setup:
            assert f"cline auth -p openai-compatible -k none -m {MODEL} -b {URL}/v1" in lines
    assert URL in text


def test_files_are_well_formed() -> None:
    """Codex's TOML has a provider that speaks the Responses API, the JSON of others names both."""
    config = tomllib.loads(settings("codex").text or "")
    assert config["model"] == MODEL
    assert config["model_providers"][config["model_provider"]]["base_url"] == f"{URL}/v1"
    for agent in ("opencode", "kilo", "pi"):
        document = json.loads(settings(agent).text or "")
        provider = json.dumps(document.get("provider") or document["providers"])
        assert f"{URL}/v1" in provider
        assert MODEL in provider


def test_agents_that_change_the_start_of_prompts_are_told_not_to(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Claude Code writes neither its billing line nor git's state, aider keeps its map."""
    claude, aider = settings("claude").environment, settings("aider").environment
    assert claude["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
    assert claude["CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS"] == "1"
    assert aider["AIDER_MAP_REFRESH"] == "files"
    assert main(["run", "claude", URL, "--model", MODEL, "--print"]) == 0
    assert '"includeGitInstructions": false' in capsys.readouterr().err


def test_the_model_is_the_one_that_the_server_lists(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --model the server is asked, by either of its URLs; one that lists none needs it."""
    with ScriptedServer(model="served") as server:
        for url in (server.root_url, f"{server.base_url}/"):
            text = printed(capsys, "claude", url)
            assert "export ANTHROPIC_MODEL=served" in text
            assert f"export ANTHROPIC_BASE_URL={server.root_url}" in text
    with ScriptedServer() as server:
        assert main(["run", "codex", server.root_url]) == 2
    assert "give --model NAME" in capsys.readouterr().err


def started(folder: Path, agent: str, program: str) -> subprocess.CompletedProcess[str]:
    """Start an agent, for which a script stands that prints what it was given."""
    script = folder / program
    script.write_text('#!/bin/sh\necho "$@"\nenv\nexit 3\n')
    script.chmod(0o755)
    words = ["run", agent, URL, "--model", "m", "--", "-p", "fix it"]
    environment = {**os.environ, "HOME": str(folder), "PATH": f"{folder}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "agentkv.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize(
    ("agent", "program", "seen"),
    [
        ("claude", "claude", f"ANTHROPIC_BASE_URL={URL}"),
        ("codex", "codex", f"model_providers.agentkv.base_url={URL}/v1"),
        ("opencode", "opencode", f'"baseURL": "{URL}/v1"'),
        ("cline", "cline", f"-m m -b {URL}/v1"),
    ],
)
def test_an_agent_is_started_with_its_settings(
    agent: str, program: str, seen: str, tmp_path: Path
) -> None:
    """It has its own arguments as well; its exit status is ours."""
    done = started(tmp_path, agent, program)
    assert seen in done.stdout
    assert agent == "cline" or "-p fix it" in done.stdout  # whose setup ended with status 3
    assert done.returncode == 3


def test_an_agent_that_reads_a_file_is_not_started_without_it(tmp_path: Path) -> None:
    """Its file must name the server; ours never writes it."""
    done = started(tmp_path, "kilo", "kilo")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"kilo.json does not name {URL}: `agentkv run kilo {URL} --print`" in done.stderr
    file = tmp_path / ".config" / "kilo" / "kilo.json"
    file.parent.mkdir(parents=True)
    file.write_text(settings("kilo").text or "")
    assert started(tmp_path, "kilo", "kilo").returncode == 3
