"""Commands of scripts run in forks of one process that has vLLM, whose import takes ten seconds.

The `agentkv` that is put into a folder hands its arguments, its folder, environment and streams
over, and ends with the command's status.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    """Serve the `agentkv` in that folder."""
    path = str(folder / "forks.sock")
    with subprocess.Popen(
        [sys.executable, "-m", "tests.forks", path], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        shim = folder / "agentkv"
        shim.write_text(SHIM.format(python=sys.executable, path=path))
        shim.chmod(0o755)
        try:
            yield
        finally:
            server.terminate()


def serve(path: str) -> None:
    for name in ("vllm.v1.core.sched.scheduler", "agentkv.evals.simulator.simulate"):
        importlib.import_module(name)
    from agentkv.cli import main

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        while True:
            asked, _ = listener.accept()
            if os.fork():
                asked.close()
                continue
            text, fds, _, _ = socket.recv_fds(asked, 1 << 20, 3)
            while piece := asked.recv(1 << 20):
                text += piece
            arguments, folder, environment = json.loads(text)
            if child := os.fork():
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                asked.sendall(str(status).encode())
                os._exit(0)
            for number, fd in enumerate(fds):
                os.dup2(fd, number)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            sys.argv = ["agentkv", *arguments]
            sys.exit(main(arguments))


if __name__ == "__main__":
    serve(sys.argv[1])
