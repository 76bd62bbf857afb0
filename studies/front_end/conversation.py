"""A tiny model with a long window, and conversations of a given length for it."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import vllm

from agentkv.server.demo_model import prepare_demo_model

Messages = list[dict[str, str]]

WINDOW = 262_144
TOKENS_PER_MESSAGE = 240


def make_model(folder: Path) -> Path:
    """Write the config of a Llama of one layer with the demo model's tokenizer; no weights."""
    for path in prepare_demo_model().iterdir():
        if path.name.startswith(("tokenizer", "chat_template", "special_tokens")):
            shutil.copy(path, folder)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 49152,
        **{"hidden_size": 64, "intermediate_size": 64, "head_dim": 64},
        **{"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1},
        "max_position_embeddings": WINDOW,
        **{"bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"},
        **{"hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": True},
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


class Conversations:
    """Messages of program text, as coding agents send them, encoded to about as many tokens."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        folder = Path(vllm.__file__).parent / "v1" / "core"
        self._source = "".join(
            path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))
        )

    def text(self, num_tokens: int) -> str:
        length = int(num_tokens * 3.9)
        start = self._chance.randrange(len(self._source) - length)
        return self._source[start : start + length]

    def history(self, num_tokens: int) -> Messages:
        """Messages that end with the user's."""
        messages = [{"role": "system", "content": "You repair programs with a shell."}]
        for number in range(max(1, round(num_tokens / TOKENS_PER_MESSAGE / 2)) * 2 - 1):
            role = ("user", "assistant")[number % 2]
            messages.append({"role": role, "content": self.text(TOKENS_PER_MESSAGE)})
        return messages

    def grow(self, messages: Messages) -> None:
        """Add a reply of 50 tokens and what a tool answered, 100 tokens."""
        messages.append({"role": "assistant", "content": self.text(50)})
        messages.append({"role": "user", "content": self.text(100)})


def body_of(messages: Messages, **fields: Any) -> bytes:
    """The request as the OpenAI SDK sends it: two tokens, streamed."""
    asked = {"model": "tiny", "messages": messages, "max_tokens": 2, "stream": True}
    return json.dumps(asked | fields, ensure_ascii=False, separators=(",", ":")).encode()
