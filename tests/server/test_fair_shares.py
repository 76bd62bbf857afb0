"""Two API keys on a real server, one of which floods it."""

import json
import threading
import time
from collections.abc import Callable
from statistics import mean

import httpx
import pytest

from agentkv.server.process import ServerProcess

pytestmark = [pytest.mark.server, pytest.mark.long]

NUM_FLOODING, NUM_SLOTS, NUM_ASKED = 12, 2, 8
PROMPT = "List the files of this folder, then read the longest of them. "
ADMIN = "key-of-admin"
KEYS = {"heavy": ["key-of-heavy", "another-of-heavy"], "light": "key-of-light"}


def ask(url: str, key: str, number: int) -> float:
    """Seconds of one request of 32 tokens of output."""
    began_s = time.monotonic()
    body = {"model": "tiny", "prompt": f"{number}: {PROMPT}", "max_tokens": 32, "ignore_eos": True}
    headers = {"Authorization": f"Bearer {key}"}
    reply = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=300.0)
    assert reply.status_code == 200, reply.text
    return time.monotonic() - began_s


def test_a_flood_of_one_key_delays_another_by_little(
    make_server: Callable[..., ServerProcess],
) -> None:
    """With twelve requests of one client for two places, those of another take half as long."""
    server = make_server(
        *("--max-num-seqs", str(NUM_SLOTS)),
        policy="agentkv",
        environment={"AGENTKV_CLIENTS": json.dumps(KEYS), "AGENTKV_ADMIN_KEY": ADMIN},
    )
    with server:
        over, taken = threading.Event(), []

        def flood(number: int) -> None:
            while not over.is_set():
                taken.append(ask(server.root_url, KEYS["heavy"][number % 2], number))

        threads = [threading.Thread(target=flood, args=(n,)) for n in range(NUM_FLOODING)]
        for thread in threads:
            thread.start()
        try:
            while len(taken) < NUM_FLOODING:
                time.sleep(0.05)
            begun = len(taken)
            light_s = [ask(server.root_url, str(KEYS["light"]), n) for n in range(NUM_ASKED)]
            heavy_s = taken[begun:]
            admin = {"Authorization": f"Bearer {ADMIN}"}
            seen = httpx.get(f"{server.root_url}/v1/agentkv/clients", headers=admin).json()
            assert [entry["client"] for entry in seen["clients"]] == ["heavy"]
        finally:
            over.set()
            for thread in threads:
                thread.join()
        routes = f"{server.root_url}/v1/agentkv"
        light = {"Authorization": f"Bearer {KEYS['light']}"}
        info = httpx.get(f"{routes}/info", headers=light)
        assert httpx.get(f"{routes}/clients", headers=light).status_code == 404
        log = server.log_path.read_text()
    print(f"light {mean(light_s):.2f} s, heavy {mean(heavy_s):.2f} s")
    assert mean(light_s) < 0.5 * mean(heavy_s)
    assert "heavy" not in info.text
    assert "key-of-" not in log
    assert "another-of-heavy" not in log
