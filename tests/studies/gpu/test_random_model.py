"""Models with made-up weights: their folders are what vLLM and transformers take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentkv.evals.simulator.cost import MODELS
from agentkv.evals.simulator.cost import kv_token_bytes as kv_token_bytes_of
from studies.gpu.random_model import END, REAL_CONFIGS, kv_token_bytes, write_random_model


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


def test_changes_make_a_small_model(tmp_path: Path) -> None:
    """Keys that are given replace the model's, for a server that has to start fast."""
    write_random_model(tmp_path, "qwen3-8b", num_hidden_layers=2)
    assert json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"] == 2


def test_the_tokenizer_takes_any_text_byte_by_byte(tmp_path: Path) -> None:
    """Text becomes one token a byte and comes back; tokens outside of the vocabulary are empty."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(write_random_model(tmp_path, "llama-3.1-8b"))
    text = "ls -l 'für' \n"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([*ids, 100_000]) == text
    assert tokenizer.eos_token == END
