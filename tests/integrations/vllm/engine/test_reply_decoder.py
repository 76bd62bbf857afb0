"""The tokenizer that reads replies is the served model's own, got when the first one is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast
from vllm.config import ModelConfig

from agentkv.integrations.vllm.engine.scheduler import ReplyDecoder
from agentkv.testing.vllm_scheduler import write_model_config

WORDS = ["<s>", "</s>", "```bash\n", "ls", " -la", "\n```", "<|call|>"]


def model_config(folder: Path, *, skip_tokenizer_init: bool = False) -> ModelConfig:
    return ModelConfig(
        model=str(write_model_config(folder)),
        dtype="float32",
        max_model_len=512,
        skip_tokenizer_init=skip_tokenizer_init,
    )


def test_special_tokens_are_text(tmp_path: Path) -> None:
    """Tool dialects are made of them."""
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}))
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["<|call|>"],
    ).save_pretrained(tmp_path)
    decode = ReplyDecoder(model_config(tmp_path))
    assert decode([2, 3, 4, 5, 6]) == "```bash\nls -la\n```<|call|>"
    assert decode([1]) == "</s>"


@pytest.mark.parametrize(
    ("is_skipped", "reason"), [(True, "--skip-tokenizer-init"), (False, r"\w+: ")]
)
def test_without_a_tokenizer_replies_are_empty(
    is_skipped: bool, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning says so, and why; then only clients tell what runs."""
    decode = ReplyDecoder(model_config(tmp_path, skip_tokenizer_init=is_skipped))
    assert [decode([1]), decode([2])] == ["", ""]
    said = [record.getMessage() for record in caplog.records if "agentkv" in record.getMessage()]
    assert len(said) == 1
    assert "only where the client reports them" in said[0]
    assert re.search(reason, said[0])
