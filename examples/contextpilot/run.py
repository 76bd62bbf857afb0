"""A ContextPilot index next to a server: its entries go when a job's KV is gone for good.

    pip install contextpilot          # or in another environment: --index-python .venv/bin/python
    python examples/contextpilot/run.py

Starts the package's index server and `agentkv serve` with the bridge between both and a KV
tier, sends the turns of three jobs under the ids that the index gave them, and prints for each step
where each job's KV is and which entries the index has. Ends with status 1 if an entry is missing or
too many, or a job that lost its pin is not in the tier.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from agentkv.server.process import HTTPProcess, ServerProcess, free_port

TTL_S = 10.0
"""Seconds that a finished turn stays pinned."""
LIMIT_S = 120.0
"""Longest wait for an entry to go."""
TIER = {
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {
        "offload_prompt_only": False,
        "spec_name": "CPUTierSpec",
        "spec_module_path": "tests.cpu_tier",
    },
}
"""vLLM's CPU build has no worker for a tier: this one is of the tests of the clone."""
JOBS = ("finishes", "is released", "goes on")


class Scene:
    """The index, the server, and the ids under which the index knows the jobs' first turns."""

    def __init__(self, index_url: str, server_url: str) -> None:
        self._index = httpx.Client(base_url=index_url, timeout=LIMIT_S)
        self._server = httpx.Client(base_url=server_url, timeout=LIMIT_S)
        self._model = self._server.get("/v1/models").json()["data"][0]["id"]
        self._wait_for_index()
        contexts = [[f"page {page} of {job}" for page in range(4)] for job in JOBS]
        built = self._index.post("/reorder", json={"contexts": contexts}).raise_for_status().json()
        names = [JOBS[number] for number in built["original_indices"]]
        self._ids: dict[str, str] = dict(zip(names, built["request_ids"], strict=True))
        self.is_true = True

    def _wait_for_index(self) -> None:
        """Wait until it answers; its `/health` is an error before the first /reorder."""
        deadline_s = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline_s:
            try:
                self._index.get("/")
                return
            except httpx.TransportError:
                time.sleep(0.2)

    def turn(self, job: str, text: str, **tags: Any) -> None:
        """One turn of a job; its first one has the id of its entry."""
        ids = {"X-Request-Id": self._ids[job]} if tags.get("turn") == 1 else {}
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 8,
            "job_id": job,
            **tags,
        }
        self._server.post("/v1/chat/completions", json=body, headers=ids).raise_for_status()

    def release(self, job: str) -> None:
        self._server.post(f"/v1/agentkv/jobs/{job}/release").raise_for_status()

    def state(self, job: str) -> str:
        answer = self._server.get(f"/v1/agentkv/jobs/{job}")
        return str(answer.json()["kv_state"]) if answer.status_code == 200 else "FREED"

    def entries(self) -> list[str]:
        """The jobs that the index has an entry of."""
        known = self._index.get("/requests").json()["request_ids"]
        return [job for job in JOBS if self._ids[job] in known]

    def show(self, what: str, expected: list[str]) -> None:
        """Print states and entries, once the entries are those expected or LIMIT_S is over."""
        deadline_s = time.monotonic() + LIMIT_S
        while self.entries() != expected and time.monotonic() < deadline_s:
            time.sleep(0.05)
        entries = self.entries()
        states = ", ".join(f"{job}: {self.state(job)}" for job in JOBS)
        print(f"{what:38} {states:64} entries: {', '.join(entries) or 'none'}")
        self.is_true = self.is_true and entries == expected

    def play(self) -> None:
        for number, job in enumerate(JOBS):
            self.turn(job, f"{number} " + "so it goes " * 60, turn=1)
        self.show("one turn of each job has finished", list(JOBS))
        self.turn("finishes", "0 " + "so it goes " * 70, turn=2, is_last_step=True)
        self.show("the first job's last step has finished", ["is released", "goes on"])
        while self.state("goes on") == "PINNED":
            time.sleep(0.2)
        self.show("the pins are over, the jobs go on", ["is released", "goes on"])
        self.is_true = self.is_true and self.state("goes on") == "OFFLOADED"
        self.release("is released")
        self.show("the second job is released", ["goes on"])
        self.turn("goes on", "2 " + "so it goes " * 70, turn=2)
        self.show("the third job has come back", ["goes on"])
        self.release("goes on")
        self.show("and is released", [])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--index-python", default=sys.executable, help="Python with contextpilot")
    parser.add_argument("--model", help="a model that vLLM serves; the demo model by default")
    parser.add_argument("--args", default="", help="further flags of vLLM, as one text")
    options = parser.parse_args()
    index_port, server_port = free_port(), free_port()
    folder = Path(tempfile.mkdtemp(prefix="agentkv-contextpilot-"))
    server_url = f"http://127.0.0.1:{server_port}"
    index = HTTPProcess(
        [
            *(options.index_python, "-m", "contextpilot.server.http_server"),
            *("--host", "127.0.0.1", "--port", str(index_port), "--infer-api-url", server_url),
        ],
        name="the index server",
        port=index_port,
        log_path=folder / "index.log",
    )
    settings = {
        **{"ttl": "fixed", "fixed_ttl_s": TTL_S},
        "kv_socket": str(folder / "kv.sock"),
    }
    server = ServerProcess(
        options.model,
        port=server_port,
        args=[
            *("--additional-config", json.dumps({"agentkv": settings})),
            *("--kv-offloading-size", "0.5", "--kv-transfer-config", json.dumps(TIER)),
            *options.args.split(),
        ],
        log_path=folder / "server.log",
        environment={"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    print(f"Logs: {folder}")
    index.start()
    bridge = [sys.executable, "-m", "agentkv.integrations.contextpilot", str(settings["kv_socket"])]
    try:
        with server, subprocess.Popen([*bridge, "--url", index.root_url]) as bridging:
            scene = Scene(index.root_url, server.root_url)
            scene.play()
            bridging.terminate()
    finally:
        index.stop()
    return 0 if scene.is_true else 1


if __name__ == "__main__":
    raise SystemExit(main())
