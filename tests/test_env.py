"""`agentkv env`: its text can be used as it is, and wrong input is answered in words.

That the agents themselves take these settings was seen once with each one's own binary
(docs/reference/compatibility.md); no test installs them.
"""

from __future__ import annotations

import json
import subprocess
import tomllib
from typing import Any

import pytest

from agentkv.cli import main
from agentkv.env import AGENTS
from tests.scripted_server import ScriptedServer

URL = "http://127.0.0.1:8000"
MODEL = "org/it's 7B"


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["env", *words]) == 0
    return capsys.readouterr().out


def settings_of(capsys: pytest.CaptureFixture[str], agent: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(printed(capsys, agent, URL, "--model", MODEL, "--json"))
    return document


@pytest.mark.parametrize("agent", AGENTS)
def test_the_printed_text_says_what_the_json_says(
    agent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines for a shell set the environment, also to a name with quotes; a file comes whole."""
    document = settings_of(capsys, agent)
    text = printed(capsys, agent, URL, "--model", MODEL)
    if document["path"]:
        assert text == document["text"] + "\n"
    else:
        shell = f'cline() {{ echo cline "$@"; }}\n{text}\nenv'
        seen = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
        lines = seen.stdout.splitlines()
        for name, value in document["environment"].items():
            assert f"{name}={value}" in lines
        if document["setup"]:
            assert f"cline auth -p openai-compatible -k none -m {MODEL} -b {URL}/v1" in lines
    assert URL in text


def test_codex_gets_toml(capsys: pytest.CaptureFixture[str]) -> None:
    """The text is TOML with a provider that speaks the Responses API."""
    config = tomllib.loads(settings_of(capsys, "codex")["text"])
    assert config["model"] == MODEL
    assert config["model_providers"][config["model_provider"]]["base_url"] == f"{URL}/v1"


def test_agents_that_change_the_start_of_prompts_are_told_not_to(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Claude Code writes neither its billing line nor git's state, aider keeps its map."""
    claude, aider = (settings_of(capsys, agent)["environment"] for agent in ("claude", "aider"))
    assert claude["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
    assert claude["CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS"] == "1"
    assert aider["AIDER_MAP_REFRESH"] == "files"
    assert main(["env", "claude", URL, "--model", MODEL]) == 0
    assert '"includeGitInstructions": false' in capsys.readouterr().err


@pytest.mark.parametrize("agent", ["opencode", "kilo", "pi"])
def test_others_get_json(agent: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The text is JSON that names URL and model."""
    text = settings_of(capsys, agent)["text"]
    provider = json.loads(text).get("provider") or json.loads(text)["providers"]
    assert f"{URL}/v1" in json.dumps(provider)
    assert MODEL in json.dumps(provider)


def test_the_model_is_the_one_that_the_server_lists(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --model the server is asked, by either of its URLs; one that lists none needs it."""
    with ScriptedServer(model="served") as server:
        for url in (server.root_url, f"{server.base_url}/"):
            document = json.loads(printed(capsys, "claude", url, "--json"))
            assert (document["url"], document["model"]) == (server.root_url, "served")
            assert document["environment"]["ANTHROPIC_MODEL"] == "served"
    with ScriptedServer() as server:
        assert main(["env", "codex", server.root_url]) == 2
    assert "give --model NAME" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nano", URL], "got 'nano', allowed are claude"),
        (["claude"], "required: URL"),
        *(
            (["claude", url], "is no server's URL")
            for url in ("127.0.0.1:8000", "ftp://a", "http://", "http://[::1", "http://a:b")
        ),
        (["claude", "http://127.0.0.1:1"], "give --model NAME"),
    ],
)
def test_wrong_input_is_answered_in_words(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2, the reason on standard error, nothing that a shell would run."""
    try:
        status: object = main(["env", *words])
    except SystemExit as exit_of_argparse:
        status = exit_of_argparse.code
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert said in err
