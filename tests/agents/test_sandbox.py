"""Facts about how a model's commands are run."""

import io
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from sandbox import Sandbox, ask_on_terminal

from agentkv.agents.sandbox import find_bubblewrap

SandboxMaker = Callable[..., Sandbox]


@pytest.fixture(params=["bubblewrap", "process"])
def make_sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxMaker:
    """Makes sandboxes over one folder, with and without isolation."""
    bubblewrap = find_bubblewrap() if request.param == "bubblewrap" else None
    if request.param == "bubblewrap" and bubblewrap is None:
        pytest.skip("bubblewrap is not installed, or may not make namespaces here")
    workspace = tmp_path / "workspace"
    workspace.mkdir()

    def make(**settings: object) -> Sandbox:
        defaults = {"bubblewrap": bubblewrap, "refusal": lambda command: None}
        return Sandbox(workspace=workspace, **(defaults | settings))  # type: ignore[arg-type]

    return make


@pytest.fixture
def isolated(tmp_path: Path) -> Sandbox:
    """A sandbox under bubblewrap, which does not ask."""
    if (bubblewrap := find_bubblewrap()) is None:
        pytest.skip("bubblewrap is not installed, or may not make namespaces here")
    (tmp_path / "workspace").mkdir()
    return Sandbox(
        workspace=tmp_path / "workspace", bubblewrap=bubblewrap, refusal=lambda command: "asked"
    )


@pytest.mark.parametrize(
    ("command", "output", "status"),
    [
        ("echo out; echo err >&2; exit 3", "out\nerr\n", 3),
        ("kill -TERM $$", "", 128 + 15),
        ("cat", "", 0),
        ("exec >&- 2>&-; sleep 0.3; exit 5", "", 5),
        (r"printf 'a\xffb'", "a�b", 0),
        ("echo hello > made.txt && cat made.txt", "hello\n", 0),
        ("ls && cat /dev/null && echo x | grep -q x && git --version | cut -c 1-3", "git\n", 0),
        ("python -m pytest --version 2>&1 | cut -c 1-6", "pytest\n", 0),
    ],
    ids=["streams", "signal", "no input", "closed output", "bytes", "write", "tools", "pytest"],
)
def test_output_and_status_are_those_of_bash(
    make_sandbox: SandboxMaker, command: str, output: str, status: int
) -> None:
    """Both streams are merged, input is empty, and a command is waited for to its end."""
    result = make_sandbox(time_limit_s=20.0).run(command)
    assert (result.output, result.returncode, result.timed_out) == (output, status, False)


@pytest.mark.parametrize(
    ("command", "limit_s", "output", "has_ended"),
    [
        ("echo before; (sleep 2; touch late) & sleep 60", 0.5, "before\n", False),
        ("sleep 60 & echo done", 30.0, "done\n", True),
        ("yes", 0.5, "y\n", False),
    ],
)
def test_no_process_outlives_a_command(
    make_sandbox: SandboxMaker,
    tmp_path: Path,
    command: str,
    limit_s: float,
    output: str,
    has_ended: bool,
) -> None:
    """At its end or at the time limit the whole process group dies, and its output is kept."""
    result = make_sandbox(time_limit_s=limit_s).run(command)
    assert result.output.startswith(output)
    assert (result.returncode, result.timed_out) == ((0, False) if has_ended else (None, True))
    assert result.duration_s < 5.0
    assert not _processes_of(tmp_path / "workspace")


@pytest.mark.parametrize(
    ("command", "limit_bytes", "left_out"),
    [
        ("yes 0123456 | head -c 2M; echo the end", 100, 2 * 2**20 + 8 - 100),
        ("head -c 80M /dev/zero; echo the end", 64 * 2**20, 16 * 2**20 + 8),
    ],
)
def test_much_output_is_clipped_at_once(
    make_sandbox: SandboxMaker, command: str, limit_bytes: int, left_out: int
) -> None:
    """Beginning and end are kept, the part between is counted, and a high limit slows nothing."""
    result = make_sandbox(time_limit_s=20.0, output_limit_bytes=limit_bytes).run(command)
    assert not result.timed_out
    assert result.output.endswith("the end\n")
    assert f"\n[... {left_out} bytes left out ...]\n" in result.output
    assert len(result.output) < limit_bytes + 100


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


@pytest.mark.parametrize(
    "command",
    [
        *(
            f"touch {folder}/x"
            for folder in ("/", "/usr", "/etc", "/project/..", os.path.expanduser("~"))
        ),
        "cat {secret}",
        "cat ../secret",
        "ls /root/.ssh /home",
        "mount -o remount,rw /usr",
        "python -c \"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=5)\"",
    ],
)
def test_isolated_commands_reach_nothing_outside(
    isolated: Sandbox, tmp_path: Path, command: str
) -> None:
    """Under bubblewrap a command cannot write, read, mount or connect outside its workspace."""
    (tmp_path / "secret").write_text("a-secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = isolated.run(command.format(secret=tmp_path / "secret", port=port))
    assert result.returncode not in (0, None)
    assert "a-secret" not in result.output


def test_isolated_commands_run_unasked_with_a_tmp_of_their_own(isolated: Sandbox) -> None:
    """Under bubblewrap `refusal` is not called, and each command has an empty /tmp."""
    assert isolated.run("touch /tmp/agentkv-was-here").returncode == 0
    assert not Path("/tmp/agentkv-was-here").exists()
    assert "agentkv-was-here" not in isolated.run("ls -A /tmp").output


def test_a_refused_command_does_not_run(tmp_path: Path) -> None:
    """Without isolation the reason of the refusal is the output, and nothing happens."""
    sandbox = Sandbox(workspace=tmp_path, bubblewrap=None, refusal=lambda command: f"no {command}")
    result = sandbox.run("touch made.txt")
    assert (result.output, result.returncode) == ("not run: no touch made.txt", None)
    assert not (tmp_path / "made.txt").exists()


@pytest.mark.parametrize(
    ("answer", "is_terminal", "runs"),
    [
        *((answer, True, True) for answer in ("y", "YES ")),
        *((answer, True, False) for answer in ("", "n")),
        ("y", False, False),
    ],
)
def test_only_yes_approves(
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    is_terminal: bool,
    runs: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A person at a terminal sees the command, and anything but their yes refuses it."""
    stdin = io.StringIO(f"{answer}\n")
    stdin.isatty = lambda: is_terminal  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", stdin)
    reason = ask_on_terminal("rm -r build")
    assert (reason is None) is runs
    assert is_terminal or "--yes" in str(reason)
    assert ("rm -r build" in capsys.readouterr().out) is is_terminal


def _processes_of(workspace: Path) -> list[str]:
    """The processes whose working directory is in the workspace, after a moment to die in."""
    deadline_s = time.monotonic() + 5.0
    found = ["not looked yet"]
    while found and time.monotonic() < deadline_s:
        found = []
        for entry in Path("/proc").glob("[0-9]*/cwd"):
            with suppress(OSError):  # it has ended, or is another user's
                if os.readlink(entry) in (str(workspace), "/project"):
                    found.append(str(entry))
    return found
