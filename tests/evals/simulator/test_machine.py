"""Machines: blocks from memory and shape, vLLM's defaults, profiles, what a step costs on them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from vllm.config import CacheConfig, ModelConfig, VllmConfig
from vllm.model_executor.models.qwen3_next import Qwen3NextForCausalLM
from vllm.platforms.interface import Platform
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend
from vllm.v1.core.kv_cache_utils import _get_kv_cache_groups_uniform_page_size
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

from agentkv.errors import InputError
from agentkv.evals.simulator.cost import GPUS, MODELS, StepBatch, roofline
from agentkv.evals.simulator.machine import Limits, block_layout, make_machine

STEP = {
    **{"fixed_s": 0.01, "prefill_token_s": 0.001, "prefill_pair_s": 0.0},
    **{"decode_s": 0.002, "context_token_s": 1e-6},
}
PROFILE = {
    "name": "cpu",
    "model": "demo",
    "step": STEP,
    **{"request_s": 0.004, "num_blocks": 300, "block_tokens": 32},
    **{"max_num_seqs": 16, "max_num_batched_tokens": 2048, "max_model_tokens": 4096},
}


@pytest.mark.parametrize(
    ("gpu", "utilization", "reported", "tolerance"),
    [
        ("rtx-5090", 0.85, 5402, 0.0),
        ("rtx-6000", 0.9, 3000, 0.15),
        ("a100-40", 0.9, 9000, 0.15),
        ("l40s", 0.9, 13_000, 0.15),
    ],
)
def test_a_card_has_the_blocks_that_the_reference_reports(
    gpu: str, utilization: float, reported: int, tolerance: float
) -> None:
    """Llama-3.1-8B has blocks of 2 MiB: 10.55 GiB of them on an RTX 5090, others to 15%."""
    machine = make_machine(gpu, "llama-3.1-8b", Limits(memory_utilization=utilization))
    assert machine.num_blocks == pytest.approx(reported, rel=tolerance)
    assert machine.block_bytes == 2 * 1024**2


def vllm_layout(name: str, num_gpus: int, folder: Path) -> tuple[int, int, int]:
    """Tokens and bytes of a block and groups with a state, all by vLLM's own code for Qwen3-Next,
    whose recurrent layers the Qwen3.5 models have, too."""
    with (folder / "config.json").open("w") as file:
        named = {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next"}
        json.dump({**named, "dtype": "bfloat16", **HYBRID[name]}, file)
    model = ModelConfig(model=str(folder), skip_tokenizer_init=True, max_model_len=4096)
    cache = CacheConfig(block_size=16, enable_prefix_caching=True, mamba_cache_mode="align")
    config = VllmConfig(model_config=model, cache_config=cache)
    config.parallel_config.tensor_parallel_size = num_gpus
    # on a CPU vLLM sets it to float32; on a GPU the model's configuration does, or nothing
    cache.mamba_ssm_cache_dtype = "auto" if name == "qwen3-next-80b" else "float32"
    Platform._align_hybrid_block_size(config, FlashAttentionBackend)
    state = MambaSpec(
        block_size=cache.block_size,
        shapes=Qwen3NextForCausalLM.get_mamba_state_shape_from_config(config),
        dtypes=Qwen3NextForCausalLM.get_mamba_state_dtype_from_config(config),
        page_size_padded=cache.mamba_page_size_padded,
        mamba_cache_mode="align",
    )
    assert num_gpus * replace(state, page_size_padded=None).page_size_bytes == (
        MODELS[name].state_bytes
    )
    attention = FullAttentionSpec(
        block_size=cache.block_size,
        num_kv_heads=model.get_num_kv_heads(config.parallel_config),
        head_size=model.get_head_size(),
        dtype=torch.bfloat16,
    )
    kinds = {"full_attention": attention, "linear_attention": state}
    layers = {str(number): kinds[kind] for number, kind in enumerate(model.hf_config.layer_types)}
    groups = _get_kv_cache_groups_uniform_page_size(layers)
    block_bytes = num_gpus * len(groups[0].layer_names) * attention.page_size_bytes
    num_states = sum(isinstance(group.kv_cache_spec, MambaSpec) for group in groups)
    assert len(groups) == 1 + num_states
    return cache.block_size, block_bytes, num_states


HYBRID: dict[str, dict[str, int]] = {
    "qwen3-next-80b": {},
    "qwen3.5-35b": {"num_hidden_layers": 40},
    "qwen3.5-27b": {
        **{"num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4},
        "linear_num_value_heads": 48,
    },
}
"""What their configurations have other than Qwen3-Next's."""


@pytest.mark.parametrize("num_gpus", [1, 2, 4])
@pytest.mark.parametrize("name", HYBRID)
def test_a_hybrid_model_has_vllms_blocks(name: str, num_gpus: int, tmp_path: Path) -> None:
    """Blocks of the catalog's hybrid models are those that vLLM makes: 544 tokens on one card."""
    assert block_layout(MODELS[name], 16, num_gpus) == vllm_layout(name, num_gpus, tmp_path)
    if (name, num_gpus) == ("qwen3-next-80b", 1):
        assert block_layout(MODELS[name], 16, 1) == (544, 544 * 24_576, 3)


def test_a_step_reads_the_experts_that_its_tokens_use() -> None:
    """One token reads 10 of 512 experts, thousands read all; each request reads its states."""
    model = MODELS["qwen3-next-80b"]
    cost = roofline(GPUS["h200"], model, 2)
    experts, shared = model.num_expert_parameters, model.num_parameters
    shared -= experts
    one_s, two_s = (cost.step_s(StepBatch.of_decodes(number, 0)) for number in (1, 2))
    read = 2 * (shared + experts * 10 / 512) + 2 * 36 * model.state_bytes
    assert one_s - cost.fixed_s == pytest.approx(read / cost.bytes_per_s, rel=0.01)
    more = 2 * experts * 10 / 512 * 502 / 512 + 2 * 36 * model.state_bytes
    assert two_s - one_s == pytest.approx(more / cost.bytes_per_s + cost.sequence_s, rel=0.01)
    assert cost.token_flop == pytest.approx(2 * 3.87e9, rel=0.01)  # "A3B", with embeddings


@pytest.mark.parametrize(
    ("gpu", "limits", "batch", "seqs"),
    [
        ("h100", Limits(), 8192, 1024),
        ("l40s", Limits(), 2048, 256),
        ("h100", Limits(max_num_batched_tokens=512), 512, 512),
    ],
)
def test_batches_are_vllms_defaults(gpu: str, limits: Limits, batch: int, seqs: int) -> None:
    """Batches are large from 70 GiB of memory on; a smaller batch lowers the turns at once."""
    machine = make_machine(gpu, None, limits)
    assert (machine.max_num_batched_tokens, machine.max_num_seqs) == (batch, seqs)


@pytest.mark.parametrize(
    ("gpu", "model", "limits", "message"),
    [
        ("h1000", None, Limits(), r"'h1000': did you mean h100"),
        ("h100", "gpt", Limits(), r"'gpt'.*qwen3-8b"),
        ("h100", "llama-3.1-70b", Limits(), r"131\.4 GiB of weights.*larger --num-gpus"),
        ("h200", "qwen3.5-35b", Limits(num_blocks=7), r"--blocks: got 7, qwen3.5-35b needs 8"),
        ("h200", None, Limits(num_gpus=3), r"3 GPUs cannot share the 32 attention heads"),
        ("h100", None, Limits(num_blocks=9_000_000), r"9,000,000 blocks, allowed are 6,000,000"),
        (
            *("h100", None, Limits(max_num_batched_tokens=512, max_num_seqs=1024)),
            r"got 512.*--max-num-seqs, 1024",
        ),
    ],
)
def test_other_machines_are_refused(
    gpu: str, model: str | None, limits: Limits, message: str
) -> None:
    """Unknown names, a model or a pool too large, and limits against vLLM's are refused."""
    with pytest.raises(InputError, match=message):
        make_machine(gpu, model, limits)


def test_a_profile_is_a_machine(tmp_path: Path) -> None:
    """A profile gives blocks, limits and times, and flags override them."""
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps(PROFILE))
    machine = make_machine(str(path), None, Limits(max_num_seqs=4))
    assert (machine.name, machine.model, machine.num_blocks) == ("cpu", "demo", 300)
    assert (machine.max_num_seqs, machine.request_s) == (4, 0.004)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("request_s", -1.0, "request_s: .*got -1.0"),
        ("format", "agentkv-profile-9", "format: .*got agentkv-profile-9"),
        ("step", {**STEP, "fixed_s": 0.0}, "step.fixed_s: .*got 0.0"),
        ("extra", 1, "extra: .*not permitted"),
    ],
)
def test_a_wrong_profile_names_the_field(
    tmp_path: Path, field: str, value: object, message: str
) -> None:
    """An invalid profile is refused with its file, the field and the value seen."""
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({**PROFILE, field: value}))
    with pytest.raises(InputError, match=rf"wrong\.json: {message}"):
        make_machine(str(path), None, Limits())


step_s = roofline(GPUS["rtx-5090"], MODELS["llama-3.1-8b"], 1).step_s


@pytest.mark.parametrize(
    ("prompt", "hit", "output", "measured_ms"),
    [(131, 64, 9, 115), (279, 128, 12, 154), (397, 272, 8, 106), (503, 384, 7, 98)],
)
def test_the_reference_job_is_reproduced(
    prompt: int, hit: int, output: int, measured_ms: float
) -> None:
    """Turns 2 to 5 of the reference's single job on an RTX 5090 are reproduced within 6%."""
    seconds = 0.005 + step_s(StepBatch.of_prefill(prompt - hit, hit))
    for step in range(output - 1):
        seconds += step_s(StepBatch.of_decodes(1, prompt + step))
    assert seconds * 1000 == pytest.approx(measured_ms, rel=0.06)
