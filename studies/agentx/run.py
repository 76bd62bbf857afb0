"""Plays aiperf against stock and agentkv in turn, each server fresh, and writes a row a run."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

PORT = 8461
URL = f"http://127.0.0.1:{PORT}"


def start(policy: str, blocks: int, log: Path) -> subprocess.Popen[bytes]:
    """A server on the demo model, once it answers."""
    command = [
        sys.executable,
        "-m",
        "agentkv.cli",
        "serve",
        "--scheduling-policy",
        policy,
        "--port",
        str(PORT),
    ]
    command += [
        "--max-model-len",
        "2240",
        "--block-size",
        "32",
        "--num-gpu-blocks-override",
        str(blocks),
        "--max-num-seqs",
        "8",
        "--enable-prompt-tokens-details",
    ]
    server = subprocess.Popen(
        ["nice", "-n", "-10", *command],
        stdout=log.open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    for _ in range(300):
        try:
            urllib.request.urlopen(URL + "/v1/models", timeout=2).read()
            return server
        except OSError:
            assert server.poll() is None, log
            time.sleep(1)
    raise TimeoutError(log)


def stop(server: subprocess.Popen[bytes]) -> None:
    os.killpg(server.pid, signal.SIGTERM)
    try:
        server.wait(40)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(20)


def counters() -> dict[str, float]:
    text = urllib.request.urlopen(URL + "/metrics", timeout=10).read().decode()
    names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
    return {
        n: sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(n))
        for n in names
    }


def aiperf(options: argparse.Namespace, out: Path) -> dict[str, float]:
    command = [
        f"{options.client}/bin/aiperf",
        "profile",
        "--url",
        URL,
        "--model",
        options.model,
        "--tokenizer",
        options.tokenizer,
        "--endpoint-type",
        "chat",
        "--streaming",
    ]
    command += [
        "--input-file",
        options.traces,
        "--custom-dataset-type",
        "weka-trace",
        "--concurrency",
        str(options.concurrency),
        "--benchmark-duration",
        str(options.seconds),
    ]
    command += [
        "--scenario",
        "inferencex-agentx-mvp",
        "--unsafe-override",
        "--random-seed",
        "1",
        "--output-artifact-dir",
        str(out),
        "--ui",
        "none",
    ]
    before = counters()
    with (out.parent / f"{out.name}.client.log").open("wb") as log:
        rc = subprocess.run(
            ["nice", "-n", "-10", *command],
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=400,
            check=False,
        ).returncode
    after = counters()
    found = json.loads((out / "profile_export_aiperf.json").read_text())
    hits, queries = (
        after[n] - before[n]
        for n in ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")
    )
    ttft, latency = found["time_to_first_token"], found["request_latency"]
    return {
        "rc": rc,
        "requests": found["request_count"]["avg"],
        "ttft_mean_s": ttft["avg"] / 1e3,
        "ttft_p99_s": ttft["p99"] / 1e3,
        "latency_mean_s": latency["avg"] / 1e3,
        "hit_rate": hits / max(1, queries),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--client", required=True)
    parser.add_argument("--traces", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--blocks", type=int, default=96)
    parser.add_argument("--concurrency", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--policy", action="append")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for repeat in range(options.repeats):
        for policy in options.policy or ["fcfs", "agentkv"]:
            name = f"{policy}-{options.concurrency}-{options.blocks}-{repeat}-{int(time.time())}"
            server = start(policy, options.blocks, options.out / f"{name}.server.log")
            try:
                row = aiperf(options, options.out / name)
            finally:
                stop(server)
            facts = {
                "policy": policy,
                "concurrency": options.concurrency,
                "blocks": options.blocks,
                "repeat": repeat,
            }
            with (options.out / "rows.jsonl").open("a") as file:
                print(json.dumps({**facts, **{k: round(v, 3) for k, v in row.items()}}), file=file)
            print(name, row, flush=True)


if __name__ == "__main__":
    main()
