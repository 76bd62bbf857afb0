"""Makes the model of the tests: random weights, small enough to serve within seconds."""

import shutil
from pathlib import Path


def make_tiny_model(demo_model_dir: Path, folder: Path) -> Path:
    """Write a Llama of 13 million random weights with the demo model's tokenizer and template."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    for path in demo_model_dir.iterdir():
        if path.name.startswith(("tokenizer", "chat_template", "special_tokens")):
            shutil.copy(path, folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
