"""The comparison on a GPU without one: its flags, its machines, and the simulator next to it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from agentkv.errors import InputError
from agentkv.evals.outcomes import compare
from agentkv.evals.simulator.cost import MODELS, FittedLine
from agentkv.evals.simulator.cost import kv_token_bytes as kv_token_bytes_of
from agentkv.evals.simulator.machine import ServerProfile
from studies.gpu.compare import Experiment, read_experiment, simulated_means, table_beside_simulator
from studies.gpu.random_model import REAL_CONFIGS, kv_token_bytes, write_random_model
from tests.evals.made_runs import job, run


def read(*flags: str) -> Experiment:
    return read_experiment(flags)[1]


def test_a_gpu_run_downloads_nothing(tmp_path: Path) -> None:
    """The catalog's model is served from a folder of our own, its weights made up by vLLM."""
    out = tmp_path / "runs"
    with pytest.raises(InputError, match="no-card"):
        read("--gpu", "no-card", "--out", str(out))
    assert not out.exists()
    made = read("--jobs", "1", "--out", str(out), "--", "--max-num-seqs", "32")
    plan = made.plan
    assert plan.model == str(out / "model")
    assert (out / "model" / "config.json").exists()
    flags = " ".join(plan.server_flags)
    assert "--load-format dummy --served-model-name llama-3.1-8b" in flags
    assert flags.endswith("--max-num-seqs 32")
    [machine] = made.machines()
    assert (machine.name, machine.num_blocks, machine.max_num_seqs) == ("h100", 3000, 32)
    assert list(made.started_as().values()) == ["h100, measured", 32, 8192, 131_072]
    assert [policy.name for policy in plan.policies[4:7]] == [
        "agentkv",
        "fcfs+offload",
        "continuum:paper+offload",
    ]
    other = read("--model", "some/model", "--out", str(out))
    assert other.plan.model == "some/model"
    assert other.machines() == []  # until its server is measured


def test_the_simulators_means_stand_beside_the_measured_ones(tmp_path: Path) -> None:
    """Each policy but a rival has its simulated mean and ratio, on both machines."""
    names = ("fcfs", "agentkv", "agentkv+offload")
    jobs = ("--jobs", "1", "--turns", "3")
    policies = [flag for name in names for flag in ("--policy", name)]
    made = read("--out", str(tmp_path), *jobs, *policies)
    measured = ServerProfile(
        name="h100, measured",
        model="llama-3.1-8b",
        step=FittedLine(0.02, 1e-4, 0.0, 1e-4, 1e-7),
        request_s=0.01,
        num_blocks=3000,
        block_tokens=16,
        kv_token_bytes=131_072,
        max_num_seqs=8,
        max_num_batched_tokens=2048,
        max_model_tokens=6000,
    )
    (tmp_path / "profile.json").write_text(measured.model_dump_json())
    expected = simulated_means(made)
    assert list(expected) == ["h100", "h100, measured"]
    assert all(tuple(means_s) == names for means_s in expected.values())
    expected_s = expected["h100"]
    assert expected_s["fcfs"] == pytest.approx(expected_s["agentkv"])  # one job is alone
    runs = [run(job(), policy=name, metadata={"repeat": 0}) for name in (*names, "other")]
    policies_of = {result.policy: asdict(result) for result in compare(runs, "fcfs")}
    document = {"baseline": "fcfs", "policies": policies_of}
    lines = table_beside_simulator(document, expected_s, "h100").splitlines()
    assert lines[0] == "Simulated on h100:"
    assert [line.split()[0] for line in lines[3:]] == list(names)
    assert f"{expected_s['fcfs']:.2f}" in lines[3]


@pytest.mark.parametrize("name", REAL_CONFIGS)
def test_a_config_has_the_parameters_of_the_model(name: str, tmp_path: Path) -> None:
    """The weights that the config describes are as many as the catalog's source says."""
    config = json.loads((write_random_model(tmp_path, name) / "config.json").read_text())
    hidden, head = config["hidden_size"], config["head_dim"]
    attention = 2 * config["num_attention_heads"] + 2 * config["num_key_value_heads"]
    norms = 2 * hidden + (2 * head if config["model_type"] == "qwen3" else 0)
    layer = hidden * head * attention + 3 * hidden * config["intermediate_size"] + norms
    embeddings = 2 * config["vocab_size"] * hidden
    found = embeddings + config["num_hidden_layers"] * layer + hidden
    assert found == MODELS[name].num_parameters
    assert kv_token_bytes(name, dtype_bytes=2) == kv_token_bytes_of(MODELS[name])
