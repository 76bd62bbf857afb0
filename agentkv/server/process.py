"""Starts and stops a vLLM server, or a proxy in front of one, in a process of its own.

The demo, the tests, `agentkv bench` and `agentkv swebench` use it. Knows nothing of what a server
is asked.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import httpx

from agentkv.errors import ServerStartError
from agentkv.policies.names import DEFAULT_POLICY

POLL_S = 0.2
STOP_S = 30.0
"""How long the server may take to end before its process group is killed."""

SERVER_PORTS = range(20_000, 32_768)
"""Ports below those of outgoing connections, by Linux's default `net.ipv4.ip_local_port_range`."""


def free_port() -> int:
    """Find a TCP port of 127.0.0.1 that is free at this moment.

    On Linux no outgoing connection gets it by itself, before the server does. Raises OSError
    after a hundred that are taken.
    """
    for port in random.SystemRandom().sample(SERVER_PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no free port among a hundred from {SERVER_PORTS[0]} to {SERVER_PORTS[-1]}")


class HTTPProcess:
    """A command that serves HTTP, as a context manager: ready inside the block, ended after it.

    name: what errors call it.

    Ready is the process once `GET` of `health_path` answers 200. Leaving the block ends the whole
    process group.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        port: int,
        log_path: Path,
        host: str = "127.0.0.1",
        environment: Mapping[str, str] | None = None,
        ready_timeout_s: float = 600.0,
        health_path: str = "/health",
    ) -> None:
        self.command = tuple(command)
        self.name = name
        self.host = host
        self.port = port
        self.log_path = log_path
        self.environment = dict(environment or {})
        self.ready_timeout_s = ready_timeout_s
        self.health_path = health_path
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def root_url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def base_url(self) -> str:
        """The `base_url` for an OpenAI client."""
        return f"{self.root_url}/v1"

    def start(self) -> None:
        """Start the process, without waiting for the server.

        Raises ServerStartError if another server uses the port: it would be taken for this one.
        """
        with suppress(OSError), socket.create_connection((self.host, self.port), timeout=5.0):
            raise ServerStartError(
                f"port {self.port} of {self.host} is taken: free it, or choose another one"
            )
        quiet = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**quiet, **os.environ, **self.environment},
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Wait until the server answers; raises ServerStartError with the end of its log."""
        assert self._process is not None, "start() comes first"
        deadline_s = time.monotonic() + self.ready_timeout_s
        while not self._is_healthy():
            if self._process.poll() is not None:
                problem = f"ended with status {self._process.returncode} before it was ready"
            elif time.monotonic() > deadline_s:
                problem = f"was not ready after {self.ready_timeout_s:.0f} s"
            else:
                time.sleep(POLL_S)
                continue
            raise ServerStartError(
                f"{self.name} {problem}; the end of its log, {self.log_path}:\n{self.log_tail()}"
            )

    def _is_healthy(self) -> bool:
        try:
            return httpx.get(f"{self.root_url}{self.health_path}", timeout=5.0).status_code == 200
        except httpx.TransportError:
            return False

    @property
    def pid(self) -> int | None:
        """The id of the server's first process; None before `start`."""
        return None if self._process is None else self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_tail(self, num_lines: int = 30) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()
        return "\n".join(lines[-num_lines:])

    def stop(self) -> None:
        """End the server: TERM to its first process, then KILL to the rest of its group."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        finally:  # also on a second Ctrl-C: a server that is still starting ignores TERM
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


class ServerProcess(HTTPProcess):
    """`agentkv serve`.

    model: None is the demo model.
    args: vLLM's own flags.
    log_path: where the log goes; by default a temporary file.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        policy: str = DEFAULT_POLICY,
        host: str = "127.0.0.1",
        port: int | None = None,
        args: Sequence[str] = (),
        log_path: Path | None = None,
        environment: Mapping[str, str] | None = None,
        ready_timeout_s: float = 600.0,
    ) -> None:
        self.model = None if model is None else os.fspath(model)
        self.policy = policy
        self.args = tuple(args)
        port = free_port() if port is None else port
        command = [sys.executable, "-m", "agentkv.cli", "serve"]
        command += [] if self.model is None else [self.model]
        command += ["--host", host, "--port", str(port)]
        command += ["--scheduling-policy", policy, *args]
        super().__init__(
            command,
            name="the server",
            host=host,
            port=port,
            log_path=log_path or Path(tempfile.mkstemp(prefix="agentkv-", suffix=".log")[1]),
            environment=environment,
            ready_timeout_s=ready_timeout_s,
        )
