"""A server process that fails says why; one that is stopped leaves nothing behind."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from agentkv.errors import ServerStartError
from agentkv.server.process import ServerProcess, free_port


def test_a_process_that_ends_shows_the_end_of_its_log(tmp_path: Path) -> None:
    """The error holds the exit status, the log's path and its last lines."""
    log_path = tmp_path / "server.log"
    server = ServerProcess(str(tmp_path / "no-model"), log_path=log_path)
    with pytest.raises(ServerStartError, match=r"status 1(.|\n)*server\.log(.|\n)*no model in"):
        server.__enter__()
    assert not server.is_alive


def test_a_silent_process_is_stopped(tmp_path: Path) -> None:
    """Not ready in time: the error says so and nothing keeps running."""
    server = ServerProcess(str(tmp_path), log_path=tmp_path / "log", ready_timeout_s=0.0)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ServerStartError, match="not ready after 0 s"):
        server.__enter__()
    assert not server.is_alive


def test_a_second_interrupt_leaves_no_server(tmp_path: Path) -> None:
    """Interrupted while it waits for a server that does not heed TERM: the server is killed."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "config.json").write_text("{}")
    server = ServerProcess(str(tmp_path), log_path=tmp_path / "log")
    heeds = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # its child inherits that
    server.start()
    signal.signal(signal.SIGTERM, heeds)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt):
            server.stop()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not server.is_alive


def test_another_server_is_never_taken_for_this_one(tmp_path: Path) -> None:
    """Something that answers on the port is named before anything is started."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = ServerProcess(str(tmp_path), port=port, log_path=tmp_path / "log")
        with pytest.raises(ServerStartError, match=f"port {port} .* is taken"):
            server.__enter__()
    assert server.pid is None


def test_urls_name_the_port() -> None:
    """base_url is what an OpenAI client takes."""
    port = free_port()
    server = ServerProcess("model", port=port)
    assert server.base_url == f"http://127.0.0.1:{port}/v1"
