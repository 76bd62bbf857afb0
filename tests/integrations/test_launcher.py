"""`agentkv run` starts programs that know nothing of agentkv."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

RUN = [sys.executable, "-m", "agentkv.cli", "run"]
FRAMEWORK = """
class Pregel:
    def stream(self):
        yield 1
    def astream(self):
        pass
"""
"""A package with the name of a framework, in which functions are replaced."""
REPORT = """
import sys
is_imported_before = "agentkv" in sys.modules
from langgraph.pregel.main import Pregel
import agentkv
print(is_imported_before, [name for name in agentkv.instrumented() if "langgraph" in name])
"""
FOLLOWED = "False ['langgraph.pregel.main.Pregel.astream', 'langgraph.pregel.main.Pregel.stream']"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a framework and a program."""
    package = tmp_path / "langgraph" / "pregel"
    package.mkdir(parents=True)
    (package / "main.py").write_text(FRAMEWORK)
    metadata = tmp_path / "langgraph-9.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.4\nName: langgraph\nVersion: 9\n")
    (tmp_path / "program.py").write_text(REPORT)
    return tmp_path


def run(
    *command: str, folder: Path, path: list[str] | None = None, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """The finished program, in a folder; `path` goes before that of this process."""
    paths = [*(path or []), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [*RUN, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stderr
    return done


def test_a_framework_is_followed_in_every_kind_of_program(folder: Path) -> None:
    """A script, a module and a console script are followed, from their first import of one on."""
    script = folder / "console-script"
    script.write_text(f"#!{sys.executable}\nimport sys; sys.path.insert(0, '.')\n{REPORT}")
    script.chmod(0o755)
    for command in (
        ["--", sys.executable, "program.py"],
        [sys.executable, "-m", "program"],
        ["--", str(script)],
    ):
        assert run(*command, folder=folder).stdout.strip() == FOLLOWED


def test_a_package_of_the_same_name_is_left_alone(folder: Path) -> None:
    """A package of the program's own that has the name of a framework's is not replaced."""
    (folder / "langgraph-9.dist-info" / "METADATA").unlink()
    done = run("--", sys.executable, "program.py", folder=folder)
    assert done.stdout.strip() == "False []"


def test_a_program_without_a_framework_does_not_load_agentkv(folder: Path) -> None:
    """A tool that an agent starts inherits the environment, and yet does not import agentkv."""
    code = "import sys; print('agentkv' in sys.modules, 'httpx' in sys.modules)"
    done = run("--", sys.executable, "-c", code, folder=folder)
    assert done.stdout.split() == ["False", "False"]


CALLS = """
import os, subprocess, sys, threading, urllib.request
import agentkv
job = agentkv.current_job()
thread = threading.Thread(target=lambda: print(agentkv.current_job() is job))
thread.start()
thread.join()
code = "import sys; print('agentkv' in sys.modules)"
print(job.job_id, subprocess.run([sys.executable, "-c", code], capture_output=True).stdout)
"""


@pytest.mark.parametrize(("flag", "job_id"), [("--job=nightly", "nightly"), ("--job", None)])
def test_a_whole_program_can_be_one_job(folder: Path, flag: str, job_id: str | None) -> None:
    """With `--job` the program is a job from its start, in its threads too; its tools are none."""
    (folder / "program.py").write_text(CALLS)
    in_thread, seen = run(flag, "--", sys.executable, "program.py", folder=folder).stdout.split(
        "\n", 1
    )
    seen_id, _, child = seen.strip().partition(" ")
    assert in_thread == "True"
    assert seen_id == job_id or (job_id is None and len(seen_id) == 32)
    assert "False" in child


def test_another_sitecustomize_runs_as_well(folder: Path) -> None:
    """A `sitecustomize` that was on the path before ours runs, and is the module of that name.

    An error in it is reported as ever, with our part done.
    """
    other = folder / "other" / "sitecustomize.py"
    other.parent.mkdir()
    other.write_text("print('other')\nanswer = 42")
    command, path = ("--", sys.executable, "program.py"), [str(other.parent)]
    program = (folder / "program.py").read_text()
    (folder / "program.py").write_text("import sitecustomize; print(sitecustomize.answer)")
    assert run(*command, folder=folder, path=path).stdout.split()[-2:] == ["other", "42"]
    other.write_text("raise KeyError('theirs')")
    (folder / "program.py").write_text(program)
    done = run(*command, folder=folder, path=path)
    assert "theirs" in done.stderr
    assert done.stdout.strip() == FOLLOWED


def test_a_signal_reaches_the_program(folder: Path) -> None:
    """The program has the process id of `agentkv run`, so signals are its own."""
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(60)"
    )
    command = [*RUN, "--", sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 7


@pytest.mark.parametrize(
    ("command", "code", "seen"),
    [
        ([], 2, "usage"),
        (["--jobs", "--", "true"], 2, "unknown option --jobs"),
        (["no-such-program"], 127, "cannot start"),
        (["/"], 126, "cannot start"),
    ],
)
def test_what_cannot_be_started_is_named(
    folder: Path, command: list[str], code: int, seen: str
) -> None:
    """No command, an unknown one, and a folder end with a shell's statuses."""
    assert seen in run(*command, folder=folder, code=code).stderr


def test_a_python_without_agentkv_goes_on(folder: Path) -> None:
    """Where agentkv cannot be imported the program runs, and one line says what is missing."""
    (folder / "broken").mkdir()
    (folder / "broken" / "agentkv.py").write_text("raise ImportError('not here')")
    (folder / "program.py").write_text(
        "import sys; sys.path.insert(0, 'broken'); import langgraph.pregel.main; print('done')"
    )
    done = run("--", sys.executable, "program.py", folder=folder)
    assert done.stdout.strip() == "done"
    assert done.stderr.count("agentkv run:") == 1


def test_a_program_that_is_not_python_is_named_and_runs(folder: Path) -> None:
    """A line says that only Python programs have jobs; a script for Python gets none."""
    done = run("--", "ls", folder=folder)
    assert "program.py" in done.stdout
    assert done.stderr == (
        "agentkv run: ls is no Python program: only Python programs that it starts have jobs\n"
    )
    script = folder / "console-script"
    script.write_text(f"#!{sys.executable}\nprint(1)\n")
    script.chmod(0o755)
    assert run("--", str(script), folder=folder).stderr == ""
