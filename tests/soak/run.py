"""Soaks a real server: random jobs on scarce memory for hours, clients killed and others started.

`make soak HOURS=4`, or `python -m tests.soak.run --hours .2`; `--policy fcfs` is stock, to compare
with under the same `--seed`. Clients have three keys; meanwhile prefix caches are reset, weights
updated and the event log is rotated, and memory, threads and file descriptors of every server
process are read. Every five minutes all clients go: then only pins may use blocks. At the end the
server must be as empty as at its start: no pin, no block in use, the prefix cache resets. Then
SIGTERM comes while clients stream. The last line is one JSON document; exit status 1 if any of that
does not hold, memory grows, or the log has an error.

What still grows may be a store on its way to its bound. The longest keep 20,000 jobs: they are
filled first, by as many jobs of one token.
"""

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import httpx
import psutil

from agentkv.protocol import WIRE_FIELD
from agentkv.server.demo_model import prepare_demo_model
from agentkv.server.process import ServerProcess
from tests.soak.traffic import KEYS
from tests.tiny_model import make_tiny_model

RESTART_S = 30.0
"""A client is killed and another one started this often, on average."""
SAMPLE_S = 5.0
START_S = 120.0
"""Most seconds before the first turn of a client, on a busy machine."""
WARM_UP = 0.3
"""Share of the run that does not count: caches and pools of threads fill."""
WORKER_WARM_UP_S = 900.0
"""vLLM's worker grows for its first minutes under any policy: under fcfs from 931 to 1,257 MiB in
8 minutes, and then no more (n = 1)."""
MAX_MIB_PER_HOUR = 1.0
MAX_NOISE_MIB = 16.0
"""Growth that an allocator shows over any time."""
MIN_HOURS = 0.15
"""Memory of a shorter run is not judged: all of it is warm-up."""
MAX_MORE = 4
"""Threads or descriptors that a process may have more at the end than after its warm-up."""
FILL_JOBS = 22_000
"""Jobs of one token that fill the stores before anything is measured."""
QUIET_EVERY_S = 300.0
MAX_END_S = 60.0
EMPTY_S = 400.0
"""All pins have ended by then: the longest TTL is 300 s."""
SETTINGS = {
    "predictor_save_s": 5.0,
    # so small that they are full after the warm-up: what still grows then has no bound
    **{"record_events": 1000, "max_jobs": 100, "max_ttl_s": 30.0},
}
SCARCE = (
    *("--block-size", "32", "--num-gpu-blocks-override", "128", "--max-model-len", "2048"),
    *("--served-model-name", "tiny"),
)
ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}
"""The prefix cache resets over HTTP; and freed copies of weights go back to the system, which glibc
keeps otherwise: 40 updates then moved stock's worker by 0.6 MiB, without by up to 120."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one server process holds at one moment."""

    at_s: float
    rss_mib: float
    num_threads: int
    num_fds: int


class Watch:
    """Samples of each process of a server, by its name."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self.samples: dict[str, list[Sample]] = {}

    def sample(self) -> None:
        for process in [self._root, *self._root.children(recursive=True)]:
            try:
                with process.oneshot():
                    name = process.cmdline()[0] if "VLLM" in process.cmdline()[0] else "API server"
                    rss_mib = process.memory_info().rss / 2**20
                    found = Sample(
                        time.monotonic(), rss_mib, process.num_threads(), process.num_fds()
                    )
            except (psutil.NoSuchProcess, IndexError):
                continue
            if rss_mib > 100:  # the others only wait, as the resource tracker does
                self.samples.setdefault(name, []).append(found)

    def report(self) -> dict[str, dict[str, Any]]:
        """By process: memory, threads and descriptors at the end, and by how much they grew."""
        found = {}
        for name, samples in self.samples.items():
            rest = samples[int(WARM_UP * len(samples)) :]
            hours = (rest[-1].at_s - rest[0].at_s) / 3600
            found[name] = {
                "rss_mib": round(rest[-1].rss_mib, 1),
                "growth_mib": _growth_mib(name, rest, samples[0].at_s),
                "rss_mib_each_minute": _each_minute(samples),
                "hours": round(hours, 3),
                "threads": rest[-1].num_threads,
                "more_threads": rest[-1].num_threads - rest[0].num_threads,
                "fds": rest[-1].num_fds,
                "more_fds": rest[-1].num_fds - rest[0].num_fds,
            }
        return found


def _growth_mib(name: str, samples: list[Sample], started_s: float) -> float | None:
    """By how much memory grew after the warm-up; None of a worker that is still in its own."""
    if "Worker" in name:
        samples = [each for each in samples if each.at_s - started_s > WORKER_WARM_UP_S]
    half = len(samples) // 2
    if half == 0:
        return None
    first, second = (
        _median([each.rss_mib for each in part]) for part in (samples[:half], samples[half:])
    )
    return round(2 * (second - first), 1)


def _each_minute(samples: list[Sample]) -> list[float]:
    """The median memory of each minute, from the first sample on."""
    minutes: dict[int, list[float]] = {}
    for each in samples:
        minutes.setdefault(int((each.at_s - samples[0].at_s) // 60), []).append(each.rss_mib)
    return [round(_median(minute), 1) for minute in minutes.values()]


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


class Operator:
    """What is done to a server while it serves: resets, weight updates, rotations of its log."""

    every_s: ClassVar[dict[str, float]] = {"reset": 60.0, "update": 150.0, "rotate": 200.0}
    """On average."""

    def __init__(self, server: ServerProcess, log: Path) -> None:
        self._url = server.root_url
        self._log = log
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []

    def act(self, within_s: float) -> None:
        for name, every_s in self.every_s.items():
            if random.random() < within_s / every_s:
                self.counts[name] += 1
                getattr(self, name)()

    def reset(self) -> None:
        self._post("reset_prefix_cache", reset_running_requests=random.random() < 0.5)

    def update(self) -> None:
        """Load the weights again while requests are frozen, drained or aborted."""
        self._post("pause", mode=random.choice(("keep", "wait", "abort")))
        self._post("collective_rpc", body={"method": "reload_weights"})
        self._post("reset_prefix_cache", reset_running_requests=True)
        self._post("resume")

    def rotate(self) -> None:
        """Rename the event log, or copy and cut it."""
        if not self._log.exists():
            return
        old = self._log.with_suffix(f".{self.counts['rotate']}")
        if random.random() < 0.5:
            self._log.rename(old)
        else:
            shutil.copyfile(self._log, old)
            self._log.open("r+b").truncate(0)

    def _post(self, path: str, body: object = None, **query: object) -> None:
        url = f"{self._url}/{path}"
        answer = httpx.post(url, json=body, params=query, timeout=300.0)  # type: ignore[arg-type]
        if not answer.is_success:
            self.problems.append(f"{path}: {answer.status_code} {answer.text[:200]}")


class Clients:
    """Processes of `traffic`, one of which is killed from time to time."""

    def __init__(
        self, base_url: str, policy: str, log_path: Path, *, number: int = 6, seed: int = 0
    ) -> None:
        self._base_url = base_url
        self._number = number
        self._seed = 1000 * seed
        self._policy = policy
        self._log_path = log_path
        self._processes: list[subprocess.Popen[bytes]] = []
        self.num_started = 0
        self.num_failed = 0

    def keep_up(self) -> None:
        """Start clients until all run; count those that ended by themselves."""
        alive = [process for process in self._processes if process.poll() is None]
        self.num_failed += len(self._processes) - len(alive)
        self._processes = alive
        while len(self._processes) < self._number:
            command = [sys.executable, "-m", "tests.soak.traffic", self._base_url, self._policy]
            command += [str(self._seed + self.num_started), KEYS[self.num_started % len(KEYS)]]
            with self._log_path.open("ab") as log:
                self._processes.append(subprocess.Popen(command, stdout=log, stderr=log))
            self.num_started += 1

    def kill_one(self) -> None:
        process = self._processes.pop(random.randrange(len(self._processes)))
        process.kill()
        process.wait()

    def kill_all(self) -> None:
        while self._processes:
            self.kill_one()


def series(server: ServerProcess, name: str) -> float:
    """The sum of a Prometheus series over its labels."""
    text = httpx.get(f"{server.root_url}/metrics", timeout=60.0).text
    return sum(map(float, re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, flags=re.MULTILINE)))


def until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Poll until the condition holds; False if it never does."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.5)
    return True


def stats(server: ServerProcess) -> dict[str, Any]:
    """The engine's own state, and its blocks in use."""
    asked = {"headers": {"Authorization": f"Bearer {KEYS[0]}"}, "timeout": 60.0}
    found, info = (
        httpx.get(f"{server.base_url}/agentkv/{path}", **asked).json()  # type: ignore[arg-type]
        for path in ("stats", "info")
    )
    found["used_blocks"] = round(found["kv_cache_usage"] * info["num_blocks"])
    return dict(found)


def is_quiet(server: ServerProcess) -> bool:
    """Whether no request is in the engine; under a stock policy too."""
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    return not any(series(server, name) for name in names)


def fill(server: ServerProcess, num_jobs: int) -> None:
    """Play jobs of one turn and one token, so that every store is full."""
    local = threading.local()

    def play(number: int) -> None:
        if not hasattr(local, "client"):
            key = {"Authorization": f"Bearer {KEYS[number % len(KEYS)]}"}
            local.client = httpx.Client(base_url=server.root_url, headers=key, timeout=300.0)
        body = {"model": "tiny", "prompt": f"{number} {number}", "max_tokens": 1}
        body |= {WIRE_FIELD: 1, "job_id": f"fill-{number}", "is_last_step": True}
        local.client.post("/v1/completions", json=body).raise_for_status()

    with ThreadPoolExecutor(16) as pool:
        for _ in pool.map(play, range(num_jobs)):
            pass


def server_args(folder: Path, settings: Mapping[str, object]) -> tuple[str, ...]:
    """Flags of a server whose memory is short for the clients, with every store in use."""
    settings = {**SETTINGS, "predictor_state": str(folder / "predictor.json"), **settings}
    stores = ("--additional-config", json.dumps({"agentkv": settings}))
    return (*SCARCE, *stores, "--run-output-dir", str(folder / "record"))


def play(
    server: ServerProcess, hours: float, watch: Watch, clients: Clients, operator: Operator
) -> list[str]:
    """Play for that long; what quiet moments had that they must not have, or none came."""
    broken, quiet_s = [], time.monotonic() + QUIET_EVERY_S
    ends_s = time.monotonic() + 3600 * hours
    while time.monotonic() < ends_s and server.is_alive:
        clients.keep_up()
        if random.random() < SAMPLE_S / RESTART_S:
            clients.kill_one()
        time.sleep(SAMPLE_S)
        watch.sample()
        operator.act(SAMPLE_S)
        if time.monotonic() > quiet_s:
            clients.kill_all()
            operator.counts["quiet"] += 1
            if not until(lambda: is_quiet(server) and _only_pins_use_blocks(server), 120.0):
                broken.append(f"{operator.counts} has more than pins")
            quiet_s = time.monotonic() + QUIET_EVERY_S
    return broken


def _only_pins_use_blocks(server: ServerProcess) -> bool:
    if server.policy == "fcfs":
        return True
    found = stats(server)
    return bool(found["used_blocks"] == found["pinned_blocks"])


def seconds_to_end(server: ServerProcess, clients: Clients) -> float:
    """Send SIGTERM while clients stream; the seconds until no process of the server is left."""
    clients.keep_up()
    until(lambda: series(server, "vllm:num_requests_running") > 1, START_S)
    root = psutil.Process(server.pid)
    processes, began_s = [root, *root.children(recursive=True)], time.monotonic()
    root.terminate()
    psutil.wait_procs(processes, timeout=MAX_END_S)
    return round(time.monotonic() - began_s, 1)


def soak(
    server: ServerProcess, hours: float, folder: Path, num_fill: int, clients: Clients
) -> dict[str, Any]:
    """Run it; what was seen, with the broken promises under `broken`."""
    policy = server.policy
    fill(server, num_fill)
    event_log = folder / "record" / "scheduler_timestamps.jsonl"
    with ExitStack() as stack:
        assert server.pid is not None
        watch = Watch(server.pid)
        stack.callback(clients.kill_all)
        clients.keep_up()
        until(lambda: series(server, "vllm:request_success_total") > 0, START_S)
        operator = Operator(server, event_log)
        quiet = play(server, hours, watch, clients, operator)
        clients.kill_all()
        is_idle = until(lambda: is_quiet(server), 120.0)
        is_unpinned = until(lambda: series(server, "agentkv:pinned_blocks") == 0, EMPTY_S)
        is_unused = until(lambda: series(server, "vllm:kv_cache_usage_perc") == 0, 30.0)
        is_reset = httpx.post(f"{server.root_url}/reset_prefix_cache", timeout=60.0).is_success
        watch.sample()
        num_turns = series(server, "vllm:request_success_total")
        num_pins = series(server, "agentkv:pins_total")
        num_faults = series(server, "agentkv:policy_faults_total")
        log = server.log_path.read_text(errors="replace")
    errors = re.findall(r"^.*(?: ERROR |Traceback).*$", log, flags=re.MULTILINE)
    processes = watch.report()
    held = {
        "the server lives to the end": is_idle,
        "all pins end": is_unpinned,
        "all blocks come back": is_unused and is_reset,
        "the log has no error": not errors,
        "quiet moments have blocks of pins alone": not quiet,
        "resets and updates are answered": not operator.problems,
        "event logs are whole": all(
            b"\0" not in path.read_bytes() for path in event_log.parent.glob("*")
        ),
        "clients end only when killed": clients.num_failed == 0,
        "memory is flat": hours < MIN_HOURS
        or all(
            (found["growth_mib"] or 0.0) <= MAX_NOISE_MIB + MAX_MIB_PER_HOUR * found["hours"]
            for found in processes.values()
        ),
        "threads and descriptors come back": all(
            max(found["more_threads"], found["more_fds"]) <= MAX_MORE
            for found in processes.values()
        ),
    }
    return {
        "policy": policy,
        "hours": hours,
        "server": server.args,
        "turns": num_turns,
        "pins": num_pins,
        "late_or_failed_answers": num_faults,
        "clients": clients.num_started,
        "done_to_it": dict(operator.counts),
        "processes": processes,
        "num_errors": len(errors),
        "errors": errors[:5],
        "problems": [*quiet[:3], *operator.problems[:3]],
        "broken": [promise for promise, is_held in held.items() if not is_held],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=4.0)
    parser.add_argument(
        "--policy",
        default="agentkv",
        choices=("fcfs", "continuum", "context_serve", "agentkv"),
        help="fcfs: stock vLLM, to compare with",
    )
    parser.add_argument("--clients", type=int, default=6, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random.seed(options.seed)
    with tempfile.TemporaryDirectory(prefix="agentkv-soak-") as name:
        folder = Path(name)
        (folder / "tiny").mkdir()
        with ServerProcess(
            make_tiny_model(prepare_demo_model(), folder / "tiny"),
            policy=options.policy,
            args=(*server_args(folder, {}), "--api-key", *KEYS),
            log_path=folder / "server.log",
            environment=ENVIRONMENT,
        ) as server:
            clients = Clients(
                server.base_url,
                options.policy,
                folder / "clients.log",
                number=options.clients,
                seed=options.seed,
            )
            report = soak(server, options.hours, folder, FILL_JOBS, clients)
            report["seconds_to_end"] = seconds_to_end(server, clients)
            if report["seconds_to_end"] >= MAX_END_S:
                report["broken"].append("SIGTERM ends it")
            clients.kill_all()
        if report["broken"]:
            print((folder / "clients.log").read_text(errors="replace")[-3000:])
    print(json.dumps(report))
    return 1 if report["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
