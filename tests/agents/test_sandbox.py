"""Facts about how a model's commands are run."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentkv.agents.sandbox import Sandbox, ask_on_terminal, find_bubblewrap

SandboxMaker = Callable[..., Sandbox]


def allow(command: str) -> str | None:
    return None


@pytest.fixture(params=["bubblewrap", "process"])
def make_sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxMaker:
    """Makes sandboxes over one folder, with and without isolation."""
    bubblewrap = find_bubblewrap() if request.param == "bubblewrap" else None
    if request.param == "bubblewrap" and bubblewrap is None:
        pytest.skip("bubblewrap is not installed, or may not make namespaces here")
    workspace = tmp_path / "workspace"
    workspace.mkdir()

    def make(**settings: object) -> Sandbox:
        defaults = {"bubblewrap": bubblewrap, "refusal": allow}
        return Sandbox(workspace, **(defaults | settings))  # type: ignore[arg-type]

    return make


@pytest.fixture
def isolated(tmp_path: Path) -> Sandbox:
    """A sandbox under bubblewrap."""
    bubblewrap = find_bubblewrap()
    if bubblewrap is None:
        pytest.skip("bubblewrap is not installed, or may not make namespaces here")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    return Sandbox(workspace, bubblewrap=bubblewrap, refusal=allow)


def test_output_of_both_streams_and_status_come_back(
    make_sandbox: SandboxMaker,
) -> None:
    """Standard output and standard error are merged in order, and the exit status is bash's."""
    result = make_sandbox().run("echo out; echo err >&2; exit 3")
    assert (result.output, result.returncode, result.timed_out) == (
        "out\nerr\n",
        3,
        False,
    )


def test_a_death_by_signal_is_128_plus_the_signal(make_sandbox: SandboxMaker) -> None:
    """A killed command has the status that a shell would show."""
    assert make_sandbox().run("kill -TERM $$").returncode == 128 + 15


def test_standard_input_is_empty(make_sandbox: SandboxMaker) -> None:
    """A command that reads standard input finds its end, and does not wait."""
    assert make_sandbox(time_limit_s=20.0).run("cat").returncode == 0


def test_the_time_limit_ends_a_command_and_its_children(
    make_sandbox: SandboxMaker, tmp_path: Path
) -> None:
    """At the limit the whole process group dies, and what was printed so far is kept."""
    sandbox = make_sandbox(time_limit_s=0.5)
    result = sandbox.run("echo before; (sleep 2; touch late) & sleep 60")
    assert (result.output, result.returncode, result.timed_out) == (
        "before\n",
        None,
        True,
    )
    assert 0.5 <= result.duration_s < 5.0
    assert not _processes_of(tmp_path / "workspace")


def test_a_child_left_behind_does_not_hold_the_result(
    make_sandbox: SandboxMaker, tmp_path: Path
) -> None:
    """A background child that keeps the output open is killed when the command ends."""
    result = make_sandbox(time_limit_s=30.0).run("sleep 60 & echo done")
    assert (result.output, result.returncode) == ("done\n", 0)
    assert result.duration_s < 5.0
    assert not _processes_of(tmp_path / "workspace")


def test_a_command_that_closes_its_output_is_still_waited_for(
    make_sandbox: SandboxMaker,
) -> None:
    """The end of the output is not taken for the end of the command."""
    result = make_sandbox().run("exec >&- 2>&-; sleep 0.3; exit 5")
    assert result.returncode == 5
    assert result.duration_s >= 0.3


def test_endless_output_is_clipped_in_bounded_memory(
    make_sandbox: SandboxMaker,
) -> None:
    """The beginning and the end are kept and the part between is counted."""
    result = make_sandbox(output_limit_bytes=100).run("seq 1 200000; echo the end")
    assert result.output.startswith("1\n2\n3\n")
    assert result.output.endswith("the end\n")
    assert "bytes left out" in result.output
    assert len(result.output) < 200


def test_much_output_is_read_as_fast_under_a_high_limit(
    make_sandbox: SandboxMaker,
) -> None:
    """A command is not slowed by what is kept of it: this one prints for a fraction of a second."""
    sandbox = make_sandbox(time_limit_s=20.0, output_limit_bytes=64 * 2**20)
    result = sandbox.run("head -c 300M /dev/zero; echo the end")
    assert not result.timed_out
    assert result.output.endswith("the end\n")
    assert f"[... {300 * 2**20 + 8 - 64 * 2**20} bytes left out ...]" in result.output


def test_output_that_never_stops_ends_at_the_time_limit(
    make_sandbox: SandboxMaker,
) -> None:
    """A command that prints without pause cannot outrun its limit."""
    result = make_sandbox(time_limit_s=0.5).run("yes")
    assert result.timed_out
    assert result.duration_s < 5.0


def test_output_that_is_not_text_is_shown_with_replacements(
    make_sandbox: SandboxMaker,
) -> None:
    """Bytes that are no UTF-8 do not break the agent."""
    assert make_sandbox().run(r"printf 'a\xffb'").output == "a�b"


@pytest.mark.parametrize("command", ["a\0b", "\ud800", "x" * 200_000], ids=["nul", "half", "huge"])
def test_a_command_that_cannot_be_passed_on_is_a_result(
    make_sandbox: SandboxMaker, command: str
) -> None:
    """What no process can be started with comes back as output and status 126."""
    result = make_sandbox().run(command)
    assert result.returncode == 126
    assert result.output.startswith("cannot run: ")


def test_the_environment_is_not_inherited(
    make_sandbox: SandboxMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key in the agent's environment is out of the model's reach."""
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret")
    assert "a-secret" not in make_sandbox().run("env").output


def test_the_programs_of_the_experiment_are_there(make_sandbox: SandboxMaker) -> None:
    """ls, cat, grep, git and pytest all work inside."""
    result = make_sandbox().run(
        "ls && cat /dev/null && echo x | grep -q x && git --version && python -m pytest --version"
    )
    assert result.returncode == 0, result.output


def test_the_workspace_can_be_written_to(make_sandbox: SandboxMaker, tmp_path: Path) -> None:
    """Files made by a command lie in the workspace afterwards."""
    assert make_sandbox().run("echo hello > made.txt").returncode == 0
    assert (tmp_path / "workspace" / "made.txt").read_text() == "hello\n"


def test_isolated_commands_have_no_network(isolated: Sandbox) -> None:
    """Under bubblewrap not even the loopback device of the machine is there."""
    code = "import socket; socket.create_connection(('127.0.0.1', {port}), timeout=5)"
    with _listener() as port:
        result = isolated.run(f'python -c "{code.format(port=port)}"')
    assert result.returncode == 1
    assert "ConnectionRefusedError" in result.output or "unreachable" in result.output


@pytest.mark.parametrize("folder", ["/", "/usr", "/etc", "/project/..", os.path.expanduser("~")])
def test_isolated_commands_write_nowhere_else(isolated: Sandbox, folder: str) -> None:
    """Under bubblewrap only the workspace and a private /tmp take files."""
    result = isolated.run(f"touch {folder}/agentkv-was-here")
    assert result.returncode == 1
    assert not (Path(folder) / "agentkv-was-here").exists()


def test_isolated_commands_see_a_tmp_of_their_own(isolated: Sandbox, tmp_path: Path) -> None:
    """Under bubblewrap /tmp is empty at first, and gone afterwards."""
    assert isolated.run("ls -A /tmp").output == "" or "/tmp" in str(Path(sys.prefix))
    isolated.run("touch /tmp/agentkv-was-here")
    assert not Path("/tmp/agentkv-was-here").exists()


def test_isolated_commands_see_no_other_files(isolated: Sandbox, tmp_path: Path) -> None:
    """Under bubblewrap a file beside the workspace is out of sight."""
    (tmp_path / "secret").write_text("a-secret")
    result = isolated.run(f"cat {tmp_path}/secret ../secret")
    assert result.returncode == 1
    assert "a-secret" not in result.output


def test_isolation_cannot_be_mounted_away(isolated: Sandbox) -> None:
    """Under bubblewrap a command has no right to remount the system read-write."""
    assert isolated.run("mount -o remount,rw /usr").returncode != 0


def test_a_refused_command_does_not_run(tmp_path: Path) -> None:
    """Without isolation the reason of the refusal is the output, and nothing happens."""
    sandbox = Sandbox(tmp_path, bubblewrap=None, refusal=lambda command: f"no {command}")
    result = sandbox.run("touch made.txt")
    assert (result.output, result.returncode) == ("not run: no touch made.txt", None)
    assert not (tmp_path / "made.txt").exists()


def test_isolated_commands_are_not_asked_about(isolated: Sandbox, tmp_path: Path) -> None:
    """Under bubblewrap nobody is asked."""
    bubblewrap = find_bubblewrap()
    sandbox = Sandbox(tmp_path, bubblewrap=bubblewrap, refusal=lambda command: "asked")
    assert sandbox.run("true").returncode == 0


def test_without_a_terminal_approval_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where standard input is no terminal the question is not put, and the answer is no."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    reason = ask_on_terminal("ls")
    assert reason is not None
    assert "--yes" in reason


@pytest.mark.parametrize(
    ("answer", "runs"), [("y", True), ("YES ", True), ("", False), ("n", False)]
)
def test_only_yes_approves(
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    runs: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The user sees the command, and anything but yes refuses it."""
    stdin = io.StringIO(f"{answer}\n")
    stdin.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", stdin)
    assert (ask_on_terminal("rm -r build") is None) is runs
    assert "rm -r build" in capsys.readouterr().out


def _processes_of(workspace: Path) -> list[str]:
    """The processes whose working directory is in the workspace, after a moment to die in."""
    deadline_s = time.monotonic() + 5.0
    while found := [entry for entry in os.listdir("/proc") if _is_in(entry, workspace)]:
        if time.monotonic() > deadline_s:
            break
        time.sleep(0.01)
    return found


def _is_in(entry: str, workspace: Path) -> bool:
    try:
        folder = os.readlink(f"/proc/{entry}/cwd")
    except OSError:
        return False
    return folder in (str(workspace), "/project")


@contextlib.contextmanager
def _listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]
