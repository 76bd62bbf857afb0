"""Half a minute of the soak (`make soak` runs hours): a server is as empty after as before."""

import json
from pathlib import Path

import pytest

from agentkv.server.process import ServerProcess
from tests.soak.run import Clients, soak

pytestmark = pytest.mark.server

SOAK_S = 30.0


def test_random_jobs_and_killed_clients_leave_nothing_behind(
    scarce_server: ServerProcess, tmp_path: Path
) -> None:
    """Blocks, pins, threads and descriptors come back, and the log has no error."""
    clients = Clients(scarce_server.base_url, scarce_server.policy, tmp_path / "clients.log")
    report = soak(scarce_server, SOAK_S / 3600, tmp_path, 0, clients)
    print(json.dumps(report))
    assert report["broken"] == [], report
    assert report["pins"] > 0
