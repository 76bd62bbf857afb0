"""Folders of models whose weights vLLM makes up (`--load-format dummy`): nothing is downloaded.

A step takes as long as one of the real model, and a reply says nothing. Imports neither torch nor
vLLM.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LAYERS = {
    "hidden_act": "silu",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "use_cache": True,
}
REAL_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama-3.1-8b": _LAYERS
    | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "qwen3-8b": _LAYERS
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "vocab_size": 151_936,
        "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
    },
}
"""Sources: config.json of meta-llama/Llama-3.1-8B-Instruct and of Qwen/Qwen3-8B."""

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    **REAL_CONFIGS,
    "llama-tiny": {
        **REAL_CONFIGS["llama-3.1-8b"],
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 512,
    },
}
"""`llama-tiny` is Llama-3.1-8B's architecture in a size that a CPU serves within seconds."""

END = "<|end|>"


def write_random_model(folder: Path, name: str, **changes: Any) -> Path:
    """Write a model's `config.json`, with `changes`, and a tokenizer of single bytes.

    Raises KeyError for a model that is not in CONFIGS, OSError if the files cannot be written.
    """
    ids = {character: number for number, character in enumerate(_byte_characters())}
    end_id = len(ids)
    config = {**CONFIGS[name], "torch_dtype": "bfloat16", "eos_token_id": end_id} | changes
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": end_id, "content": END, "special": True, **token}],
        "pre_tokenizer": {**byte_level, "use_regex": False},
        "decoder": {**byte_level, "use_regex": False},
        "model": {"type": "BPE", "vocab": {**ids, END: end_id}, "merges": []},
    }
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in (
        ("config.json", config),
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", about),
    ):
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
    return folder


def kv_token_bytes(name: str, dtype_bytes: int) -> int:
    """Bytes of KV per token of a model in CONFIGS: K and V of every layer."""
    config = CONFIGS[name]
    layer = 2 * config["num_key_value_heads"] * config["head_dim"]
    return int(config["num_hidden_layers"] * layer * dtype_bytes)


def _byte_characters() -> list[str]:
    """The printable character by which byte-level tokenizers write each of the 256 bytes."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = iter(range(0x100, 0x200))
    return [chr(byte) if byte in shown else chr(next(hidden)) for byte in range(256)]
