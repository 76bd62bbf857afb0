"""The names of clients: by which a server tells apart whose a request is."""

import multiprocessing
from typing import Any

import pytest

from agentkv.integrations.vllm.clients import Clients


def name_of(host: str | None) -> str:
    """The client's name by its address, on a server without keys."""
    client = None if host is None else (host, 40_000)
    return Clients(None, {}).of({"type": "http", "headers": [], "client": client})


@pytest.mark.parametrize(
    ("host", "other", "is_same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("testclient", "other", False),
        (None, None, True),
    ],
)
def test_an_address_is_a_client(host: str | None, other: str | None, is_same: bool) -> None:
    """A network of 64 bits of IPv6 is one client; IPv4 is the same in either notation."""
    assert (name_of(host) == name_of(other)) is is_same


def _send_name(connection: Any) -> None:
    connection.send(name_of("10.0.0.1"))


def test_all_api_servers_of_a_server_name_a_client_alike() -> None:
    """A job's turns may reach the engine through several API server processes."""
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_send_name, args=(there,))
    process.start()
    assert here.poll(60)
    assert here.recv() == name_of("10.0.0.1")
    process.join()
