"""A policy in a file on a real server: it runs under its name, and outputs are those of stock."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentkv.cli import main as agentkv
from agentkv.server.process import ServerProcess
from tests.conftest import TINY_ARGS, ServerPool
from tests.server.chat import WORDS, agentkv_get, chat, metric, wait_for

pytestmark = [pytest.mark.server, pytest.mark.long]


def test_the_template_serves_what_stock_serves(
    server_pool: ServerPool, tiny_model_dir: Path, tiny_fcfs_server: ServerProcess, tmp_path: Path
) -> None:
    """The server names the policy `Mine`, pins by its rule, and samples the tokens of fcfs."""
    assert agentkv(["policy", "new", str(tmp_path / "mine.py")]) == 0
    server = server_pool.get(tiny_model_dir, *TINY_ARGS, policy=f"{tmp_path}/mine.py:Mine")
    info = agentkv_get(server, "info")
    assert (info["policy"], info["settings"]["hold_s"]) == ("Mine", 5.0)
    for text in (WORDS, f"{WORDS} and more", f"{WORDS} and more and more"):
        ours = chat(server, text, job_id="job", max_tokens=24)
        stock = chat(tiny_fcfs_server, text, max_tokens=24)
        assert ours["choices"][0]["message"] == stock["choices"][0]["message"]
    wait_for(lambda: metric(server, "agentkv:pins_total") >= 2)
    assert metric(server, "agentkv:policy_faults_total") == 0
