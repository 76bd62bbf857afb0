"""ServerProcess: a failed start says why, and a stop leaves no process."""

import signal
import socket
from pathlib import Path

import pytest

from agentkv.errors import ServerStartError
from agentkv.server.process import ServerProcess, free_port


@pytest.mark.parametrize(
    ("model", "ready_timeout_s", "message"),
    [
        ("no-model", 600.0, r"status 2(.|\n)*server\.log(.|\n)*no model in"),
        (".", 0.0, r"not ready after 0 s(.|\n)*server\.log"),
    ],
    ids=["ends", "silent"],
)
def test_a_server_that_does_not_start_is_stopped_and_explained(
    model: str, ready_timeout_s: float, message: str, tmp_path: Path
) -> None:
    """The error has the reason, the path of the log and its last lines; no process is left."""
    (tmp_path / "config.json").write_text("{}")
    log_path = tmp_path / "server.log"
    server = ServerProcess(tmp_path / model, log_path=log_path, ready_timeout_s=ready_timeout_s)
    with pytest.raises(ServerStartError, match=message):
        server.__enter__()
    assert not server.is_alive


def test_a_second_interrupt_leaves_no_server(tmp_path: Path) -> None:
    """Ctrl-C while it waits for a server that ignores TERM kills the server."""

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
    """If another server uses the port, the error names it and nothing is started."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = ServerProcess(str(tmp_path), port=port, log_path=tmp_path / "log")
        with pytest.raises(ServerStartError, match=f"port {port} .* is taken"):
            server.__enter__()
    assert server.pid is None


def test_no_connection_gets_a_servers_port_by_itself() -> None:
    """Linux gives outgoing connections ports of this range."""
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if not given.exists():
        pytest.skip("not Linux")
    assert free_port() < int(given.read_text().split()[0])
