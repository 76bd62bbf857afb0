"""Facts about `agentkv verify-pin` against real servers."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentkv.cli import main as agentkv_command
from agentkv.server.process import ServerProcess

pytestmark = pytest.mark.server


def verify(
    server: ServerProcess, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, dict[str, Any], str]:
    """Exit status, JSON document and the text before it."""
    # on a busy machine a gap of the default second may outlast the TTL of two
    flags = ["--base-url", server.base_url, "--json", "--gap-s", "0.4", *options]
    status = agentkv_command(["verify-pin", *flags])
    captured = capsys.readouterr()
    return status, json.loads(captured.out), captured.err


def test_continuum_passes(
    tiny_continuum_server: ServerProcess, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Status 0; what is pinned after each turn is exactly the whole blocks of its context."""
    status, document, text = verify(tiny_continuum_server, capsys, "--out", str(tmp_path))
    assert status == 0, text
    assert document["policy"] == "continuum"
    assert document["ttl_trial"]["held_s"] > document["ttl_trial"]["ttl_s"] - 0.1
    assert all(check["passed"] for check in document["checks"])
    *pinned, last = document["turns"]
    assert [row["blocks_after"] for row in pinned] == [row["blocks_full"] for row in pinned]
    assert last["blocks_after"] == 0
    assert json.loads((tmp_path / "verify_pin.json").read_text()) == document


def test_fcfs_fails_and_says_why(
    tiny_fcfs_server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 1 with all rows: nothing is held, so nothing can be constant, grow or run out."""
    status, document, text = verify(tiny_fcfs_server, capsys)
    assert status == 1
    assert document["policy"] is None
    assert [row["blocks_after"] for row in document["turns"]] == [0] * 5
    failed = [check["name"] for check in document["checks"] if not check["passed"]]
    assert failed == [
        "usage constant in every gap",
        "usage grows turn by turn",
        "usage zero after a TTL runs out",
    ]
    assert "--scheduling-policy continuum" in text


def test_other_traffic_is_noticed(
    tiny_continuum_server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 1 if others use the server meanwhile, since usage is then not the job's alone."""
    is_over = threading.Event()
    body = {"model": "tiny", "prompt": "other work", "max_tokens": 8, "temperature": 0}

    def work() -> None:
        while not is_over.wait(0.5):
            httpx.post(f"{tiny_continuum_server.base_url}/completions", json=body, timeout=60)

    other = threading.Thread(target=work)
    other.start()
    try:
        status, document, _ = verify(tiny_continuum_server, capsys)
    finally:
        is_over.set()
        other.join()
    assert status == 1
    assert document["num_foreign_requests"] > 0


def test_a_model_that_the_server_does_not_serve_is_bad_usage(
    tiny_continuum_server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown model gives status 2 and the names of those served."""
    arguments = ["--base-url", tiny_continuum_server.base_url, "--model", "no-such-model"]
    assert agentkv_command(["verify-pin", *arguments]) == 2
    assert "no-such-model" in capsys.readouterr().err
