"""Starts servers and commands as forks of a process that has imported vLLM.

A server is three processes, and each would import vLLM: 30 of the 37 CPU seconds of a start. Here a
fork server of `multiprocessing` imports it once for a process of tests (`tests.preloaded_vllm`).
Nothing but imported modules is shared: no thread runs before the fork (that module checks it), and
the child reads arguments, settings, environment and plugins itself, by the command's own `main`.
The processes that vLLM would spawn come from a second fork server that the child leaves behind
first, as clean as spawned ones and in its process group. Log, signals and end are a server's as
ever. Tests that are about the start itself use `ServerProcess`.
"""

import ctypes
import json
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, context, forkserver, resource_tracker, spawn
from pathlib import Path
from typing import Any, NoReturn

from agentkv import cli
from agentkv.server.process import ServerProcess

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.preloaded_vllm"])
QUIET = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
STREAMS = {"stdin": "r", "stdout": "w", "stderr": "w"}
PR_SET_PDEATHSIG = 1


def forked(
    target: Callable[..., None], arguments: Sequence[str], log: Path, **environment: str
) -> Any:
    """Begin `target(arguments)` in a process group of its own, which ends with the tests."""
    options = (target, arguments, str(log), {**QUIET, **os.environ, **environment})
    # a daemon: the end of the tests does not wait for it
    process = FORKS.Process(target=_apart, args=options, daemon=True)
    process.start()
    return process


def _apart(
    target: Callable[..., None],
    arguments: Sequence[str],
    log_path: str,
    environment: Mapping[str, str],
) -> None:
    os.setsid()
    # the tests' fork server ends with them, also if they are killed, and this process with it
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    with open(log_path, "wb") as log:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(log.fileno(), stream.fileno())
    set_environment(environment)
    multiprocessing.current_process()._config["daemon"] = False  # it has children
    fork_what_would_be_spawned()
    target(arguments)


def run_module(arguments: Sequence[str]) -> None:
    """Do as `python -m` with these arguments."""
    sys.argv = list(arguments)
    runpy.run_module(arguments[0], run_name="__main__")


class ForkedServer(ServerProcess):
    """`agentkv serve` without its imports."""

    def start(self) -> None:
        process = forked(serve, self.command[3:], self.log_path, **self.environment)
        # it has all that HTTPProcess asks of a subprocess.Popen
        self._process = process._popen


class ReplacedError(BaseException):
    """The process asks to be replaced by another program."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.command = command
        self.environment = environment


def serve(arguments: Sequence[str]) -> None:
    """Run `agentkv serve`, which would replace its process by one that imports vLLM."""

    def replace(_: str, command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
        raise ReplacedError(command, environment)

    execve, os.execve = os.execve, replace
    try:
        sys.exit(cli.main(list(arguments)))
    except ReplacedError as replaced:
        os.execve = execve
        set_environment(replaced.environment)
        sys.argv = list(replaced.command[2:])
    from agentkv.integrations.vllm.serve import run_vllm

    run_vllm()


def set_environment(environment: Mapping[str, str]) -> None:
    """Put this environment in place, also for what looked at the one before when imported."""
    from prometheus_client import values  # vLLM's environment has it

    os.environ.clear()
    os.environ.update(environment)
    values.ValueClass = values.get_value_class()  # one for several API servers


def fork_what_would_be_spawned() -> None:
    """Leave a fork server behind from which this process's children come."""
    from setproctitle import setproctitle  # vLLM's environment has it

    server = forkserver._forkserver
    os.close(server._forkserver_alive_fd)  # the tests' fork server does not wait for this process
    resource_tracker._resource_tracker._fd = None  # it gets its own, as a spawned process does
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(connection.arbitrary_address("AF_UNIX"))
    listener.listen()
    alive_r, alive_w = os.pipe()
    server._forkserver_address = listener.getsockname()
    server._forkserver_alive_fd = alive_w
    server.ensure_running = lambda: None
    contexts = context._concrete_contexts
    contexts["spawn"] = contexts["forkserver"]
    # a spawned process has the environment of the moment
    get_preparation_data, prepare = spawn.get_preparation_data, spawn.prepare

    def data_with_environment(name: str) -> dict[str, Any]:
        return {**get_preparation_data(name), "environment": dict(os.environ)}

    def prepare_with_environment(data: dict[str, Any]) -> None:
        set_environment(data["environment"])
        prepare(data)

    spawn.get_preparation_data, spawn.prepare = data_with_environment, prepare_with_environment
    if os.fork() == 0:
        try:
            setproctitle("VLLM::Forks")
            os.close(alive_w)
            forkserver.main(listener.fileno(), alive_r, [])
        finally:
            os._exit(0)
    listener.close()
    os.close(alive_r)


SHIM = """#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as forks:
    forks.connect({path!r})
    asked = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(forks, [asked], [0, 1, 2])
    forks.shutdown(socket.SHUT_WR)
    sys.exit(int(forks.recv(9)))
"""


@contextmanager
def forked_commands(folder: Path) -> Iterator[None]:
    """Put an `agentkv` into the folder, for scripts, whose commands are run in forks.

    It hands over its arguments, its folder, environment and streams, and ends with their status.
    """
    path = str(folder / "forks.sock")
    (shim := folder / "agentkv").write_text(SHIM.format(python=sys.executable, path=path))
    shim.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        threading.Thread(target=_take_commands, args=(listener,), daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)


def _take_commands(listener: socket.socket) -> None:
    with suppress(OSError):
        while True:
            asked, _ = listener.accept()
            with asked:
                FORKS.Process(target=_run_command, args=(asked,), daemon=True).start()


def _run_command(asked: socket.socket) -> None:
    text, fds, _, _ = socket.recv_fds(asked, 1 << 20, 3)
    while piece := asked.recv(1 << 20):
        text += piece
    arguments, folder, environment = json.loads(text)
    if child := os.fork():
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        asked.sendall(str(status).encode())
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    for number, (name, mode) in enumerate(STREAMS.items()):
        os.dup2(fds[number], number)
        setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - for good
    os.chdir(folder)
    set_environment(environment)
    sys.argv = ["agentkv", *arguments]
    sys.exit(cli.main(arguments))
