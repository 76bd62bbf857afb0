"""Local stand-ins for the models that vLLM's scheduler tests name, in a Hugging Face cache.

The tests never load weights: they need a config, a tokenizer and, for the multimodal ones, an
image processor. LLaVA is stood in for by BLIP-2, which takes as many tokens per image (576) and
needs no torchvision.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

REVISION = "0" * 40
IMAGE_TOKENS = 576

OPT = {
    "model_type": "opt",
    "hidden_size": 64,
    "ffn_dim": 128,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 50272,
    "word_embed_proj_dim": 64,
}
LAYERS = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
}
MODELS: dict[str, dict[str, dict[str, Any]]] = {
    "facebook/opt-125m": {
        "config.json": {
            **OPT,
            "architectures": ["OPTForCausalLM"],
            "max_position_embeddings": 2048,
            "torch_dtype": "float16",
        }
    },
    "llava-hf/llava-1.5-7b-hf": {
        "config.json": {
            "architectures": ["Blip2ForConditionalGeneration"],
            "model_type": "blip-2",
            "image_token_index": 4,
            "num_query_tokens": IMAGE_TOKENS,
            "torch_dtype": "float16",
            "text_config": {**OPT, "max_position_embeddings": 4096},
            "qformer_config": {**LAYERS, "encoder_hidden_size": 64},
            "vision_config": {**LAYERS, "image_size": 336, "patch_size": 14},
        },
        "preprocessor_config.json": {
            "image_processor_type": "BlipImageProcessor",
            "processor_class": "Blip2Processor",
            "size": {"height": 336, "width": 336},
        },
        "processor_config.json": {
            "processor_class": "Blip2Processor",
            "num_query_tokens": IMAGE_TOKENS,
        },
    },
}


def write_stand_ins(hf_home: Path) -> None:
    """Write every model of MODELS into the cache `hf_home`, for use with HF_HUB_OFFLINE=1."""
    for name, files in MODELS.items():
        model = hf_home / "hub" / f"models--{name.replace('/', '--')}"
        snapshot = model / "snapshots" / REVISION
        snapshot.mkdir(parents=True, exist_ok=True)
        (model / "refs").mkdir(exist_ok=True)
        (model / "refs" / "main").write_text(REVISION)
        for file_name, content in files.items():
            (snapshot / file_name).write_text(json.dumps(content))
        _tokenizer().save_pretrained(snapshot)


def _tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, and the special ones."""
    tokens = ["<pad>", "<s>", "</s>", "<unk>", "<image>", *sorted(ByteLevel.alphabet())]
    tokenizer = Tokenizer(BPE(vocab={token: id_ for id_, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    make: Any = PreTrainedTokenizerFast
    made: PreTrainedTokenizerFast = make(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        additional_special_tokens=["<image>"],
    )
    return made
