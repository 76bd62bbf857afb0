"""Facts about where an agent's commands run, and what they cannot reach from there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from minisweagent.exceptions import Submitted

from agentkv.agents.sandbox import find_bubblewrap
from agentkv.evals.swebench.environments import EnvironmentPlan, missing, open_environment
from agentkv.evals.swebench.errors import SwebenchError
from agentkv.evals.swebench.instances import load_instances
from agentkv.evals.swebench.suite import prepare

INSTANCE = load_instances("demo")[0]
BUBBLEWRAP = find_bubblewrap()
CONFIG = {"environment": {"environment_class": "local", "cwd": "/testbed", "timeout": 20}}
needs_bubblewrap = pytest.mark.skipif(BUBBLEWRAP is None, reason="no bubblewrap works here")


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return prepare(tmp_path_factory.mktemp("suite"))


@pytest.fixture
def sandbox(repositories: dict[str, Path], tmp_path: Path) -> Iterator[Any]:
    plan = EnvironmentPlan("bubblewrap", repositories, tmp_path / "w", BUBBLEWRAP)
    with open_environment(plan, INSTANCE, CONFIG) as environment:
        yield environment


def said(environment: Any, command: str) -> tuple[int, str]:
    output = environment.execute({"command": command})
    return output["returncode"], output["output"].strip()


@needs_bubblewrap
def test_commands_begin_in_the_repository(sandbox: Any) -> None:
    """At /testbed, whatever class and folder the configuration names."""
    assert said(sandbox, "pwd; git rev-parse HEAD") == (0, f"/testbed\n{INSTANCE.base_commit}")


@needs_bubblewrap
def test_what_a_command_writes_stays_for_the_next(sandbox: Any) -> None:
    """In the repository and in /tmp, as in a container."""
    assert said(sandbox, "echo 1 > new; echo 2 > /tmp/other") == (0, "")
    assert said(sandbox, "cat new /tmp/other") == (0, "1\n2")


@needs_bubblewrap
def test_the_repository_itself_is_not_changed(sandbox: Any, repositories: dict[str, Path]) -> None:
    """The agent works on a copy."""
    said(sandbox, "rm -rf /testbed/* /testbed/.git; echo gone > README.md")
    assert "textgrid" in (repositories[INSTANCE.instance_id] / "README.md").read_text()


@needs_bubblewrap
@pytest.mark.parametrize("place", ["/usr", "/etc", "/", "/root", "/home"])
def test_nothing_else_can_be_written(sandbox: Any, place: str) -> None:
    """Not even by root."""
    assert said(sandbox, f"echo x > {place}/agentkv-was-here")[0] != 0
    assert not (Path(place) / "agentkv-was-here").exists()


@needs_bubblewrap
def test_the_hosts_files_are_out_of_sight(sandbox: Any, tmp_path: Path) -> None:
    """Neither its home nor its temporary folder nor what the environment holds."""
    (tmp_path / "secret").write_text("x")
    assert said(sandbox, f"cat {tmp_path}/secret")[0] != 0
    assert said(sandbox, f"ls {Path.home()}/.bashrc {Path.home()}/.ssh")[0] != 0
    assert said(sandbox, "env | grep -c AGENTKV_TEST_SECRET") == (1, "0")


@needs_bubblewrap
def test_there_is_no_network(sandbox: Any) -> None:
    """Not even this machine's own."""
    reach = "import socket; socket.create_connection(('127.0.0.1', 22), 2)"
    status, text = said(sandbox, f'python3 -c "{reach}"')
    assert status == 1
    assert "Connection refused" in text
    assert said(sandbox, "ls /sys/class/net 2>/dev/null")[1] in ("", "lo")


@needs_bubblewrap
def test_a_command_that_takes_too_long(repositories: dict[str, Path], tmp_path: Path) -> None:
    """It is ended, and what it said so far is told."""
    plan = EnvironmentPlan("bubblewrap", repositories, tmp_path / "w", BUBBLEWRAP)
    with open_environment(plan, INSTANCE, {"environment": {"timeout": 1}}) as environment:
        output = environment.execute({"command": "echo begun; sleep 30"})
    assert (output["output"], output["returncode"]) == ("begun\n", -1)
    assert "longer than 1 s" in output["exception_info"]


@needs_bubblewrap
def test_a_submission_ends_the_loop(sandbox: Any) -> None:
    """As in mini-swe-agent's environments: by an exception that holds the patch."""
    with pytest.raises(Submitted) as caught:
        said(sandbox, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo the patch")
    assert caught.value.messages[0]["extra"]["submission"] == "the patch\n"


@needs_bubblewrap
def test_a_command_that_cannot_be_started(sandbox: Any) -> None:
    """The model is told, the run goes on."""
    output = sandbox.execute({"command": "echo a\0b"})
    assert output["returncode"] == -1
    assert "could not be started" in output["exception_info"]


@needs_bubblewrap
def test_the_trajectory_tells_nothing_of_this_machine(sandbox: Any, tmp_path: Path) -> None:
    """Folders of the host are neither saved nor in the prompt's variables."""
    assert str(tmp_path) not in str(sandbox.serialize())
    assert str(tmp_path) not in str(sandbox.get_template_vars())


def test_local_needs_an_explicit_yes() -> None:
    """The model's commands run unprotected there."""
    assert "i-know-this-is-unsafe" in str(missing("local", is_unsafe_allowed=False))
    assert missing("local", is_unsafe_allowed=True) is None


def test_a_container_program_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before a server is started."""
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "docker is not installed" in str(missing("docker", is_unsafe_allowed=False))


def test_an_image_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The image, and what the container program said, are in the error."""
    program = tmp_path / "podman"
    program.write_text("#!/bin/sh\necho 'Error: manifest unknown' >&2\nexit 125\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    plan = EnvironmentPlan("podman", {}, tmp_path / "w")
    with (
        pytest.raises(SwebenchError, match=rf"{INSTANCE.image}.*status 125.*manifest unknown"),
        open_environment(plan, INSTANCE, CONFIG),
    ):
        pass


def test_local_runs_in_the_copy(repositories: dict[str, Path], tmp_path: Path) -> None:
    """Even the unprotected kind leaves the repository alone."""
    plan = EnvironmentPlan("local", repositories, tmp_path / "w")
    with open_environment(plan, INSTANCE, CONFIG) as environment:
        assert said(environment, "pwd")[1].startswith(str(tmp_path / "w"))
