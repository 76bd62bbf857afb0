"""The comparison on a GPU without one: its flags, its machines, and the simulator next to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentkv.errors import InputError
from agentkv.evals.simulator.cost import MODELS
from agentkv.evals.simulator.cost import kv_token_bytes as kv_token_bytes_of
from studies.gpu.compare import Experiment, read_experiment
from studies.gpu.random_model import REAL_CONFIGS, kv_token_bytes, write_random_model


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
