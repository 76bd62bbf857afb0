"""The simulated server: the cost of its steps, the size of its memory, its limits.

Made from names in the catalog, or from the profile that `agentkv simulate calibrate` writes. Knows
nothing of policies or vLLM; `alone_s` says how long a job takes on it with nothing else running.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentkv.command_line import share, whole_number
from agentkv.errors import InputError, not_among, reason_of

from .cost import (
    ACHIEVED,
    BATCH_TOKENS,
    BIG_BATCH_TOKENS,
    BIG_MEMORY_GIB,
    BIG_NUM_SEQS,
    BLOCK_TOKENS,
    GPU,
    GPU_MEMORY_UTILIZATION,
    GPUS,
    MODELS,
    NUM_SEQS,
    CostModel,
    FittedLine,
    ModelShape,
    roofline,
)

GIB = 1024**3
INFINITE = "infinite"
DEFAULT_DRAM_GIB = 64.0
PCIE_BYTES_S = GPUS["h100"].pcie_gb_s * 1e9
"""Of a server of which only its times are known."""
MAX_BLOCKS = 6_000_000
"""Blocks are objects: this many take 1.5 GB."""
PROFILE_FORMAT = "agentkv-profile-1"


@dataclass(frozen=True, slots=True)
class Limits:
    """vLLM's flags that bound memory and batches; None is vLLM's own default."""

    num_blocks: int | None = None
    block_tokens: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_tokens: int | None = None
    num_gpus: int = 1
    memory_utilization: float = GPU_MEMORY_UTILIZATION
    num_state_groups: int = 0
    """What an event log says; a model of the catalog has its own."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One server; `num_blocks` counts the null block, as vLLM's `num_gpu_blocks` does.

    A request takes `request_s` from the client to the engine; loads from DRAM run at
    `pcie_bytes_s`.
    """

    name: str
    model: str
    cost: CostModel
    num_blocks: int
    block_tokens: int
    block_bytes: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_tokens: int
    request_s: float
    pcie_bytes_s: float
    num_state_groups: int = 0
    """Groups of recurrent layers: a context holds a block of each for its state."""

    @property
    def pool_tokens(self) -> int:
        """Tokens that the pool holds, without the null block."""
        return (self.num_blocks - 1) * self.block_tokens

    @property
    def state_tokens(self) -> int:
        """Tokens whose KV would take the memory of a context's recurrent states."""
        return self.num_state_groups * self.block_tokens

    def reusable_tokens(self, prompt_tokens: int, computed_tokens: int) -> int:
        """Tokens of a context that its next turn can find.

        With recurrent layers vLLM keeps the state of the prompt's last whole block, none of a
        reply: `prefix_cache_retention_interval` is 0 (vllm/config/cache.py, 0.32.0).
        """
        if not self.num_state_groups:
            return computed_tokens
        return (prompt_tokens - 1) // self.block_tokens * self.block_tokens

    def as_dict(self) -> dict[str, Any]:
        """The machine as rows and reports carry it."""
        fields = asdict(self)
        fields["cost"] = {"kind": type(self.cost).__name__, **fields["cost"]}
        return fields


class ServerProfile(BaseModel):
    """A measured server, as `agentkv simulate calibrate` writes it and `--gpu FILE` reads it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: str = Field(default=PROFILE_FORMAT, pattern=f"^{PROFILE_FORMAT}$")
    name: str
    model: str
    step: FittedLine
    request_s: float = Field(ge=0, allow_inf_nan=False)
    num_blocks: int = Field(ge=2)
    block_tokens: int = Field(ge=1)
    kv_token_bytes: int = Field(0, ge=0)
    """Only the offload tier needs it; 0 if unknown."""
    num_state_groups: int = Field(0, ge=0)
    max_num_seqs: int = Field(ge=1)
    max_num_batched_tokens: int = Field(ge=1)
    max_model_tokens: int = Field(ge=1)
    measured: dict[str, Any] = Field(default_factory=dict)
    """The points to which the constants were fitted, and the errors of the fit."""


def read_profile(path: Path) -> ServerProfile:
    """Read a profile; InputError names the file, the field and the value seen."""
    try:
        return ServerProfile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: {reason_of(error)}") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the file"
        raise InputError(
            f"{path}: {field}: {first['msg']}, got {str(first['input'])[:80]}"
        ) from None


def make_machine(gpu: str, model: str | None, limits: Limits) -> Machine:
    """The machine that flags describe: a GPU and a model by name, or a profile's file.

    Raises InputError for an unknown name, for a model that does not fit, and for limits that
    vLLM or this machine's memory would not take.
    """
    if gpu in GPUS:
        machine = _from_catalog(gpu, model or "llama-3.1-8b", limits)
    elif Path(gpu).is_file():
        machine = _from_profile(read_profile(Path(gpu)), model, limits)
    else:
        profile = "the file of a profile that `agentkv simulate calibrate` wrote"
        raise InputError(f"--gpu: {not_among(gpu, GPUS, ', '.join([*GPUS, profile]))}")
    max_num_batched_tokens = limits.max_num_batched_tokens or machine.max_num_batched_tokens
    max_num_seqs = limits.max_num_seqs or min(machine.max_num_seqs, max_num_batched_tokens)
    if max_num_batched_tokens < max_num_seqs:
        raise InputError(
            f"--max-num-batched-tokens: got {max_num_batched_tokens}, vLLM takes no fewer "
            f"than --max-num-seqs, {max_num_seqs}"
        )
    if machine.num_blocks > MAX_BLOCKS:
        raise InputError(f"--blocks: {machine.num_blocks:,} blocks, allowed are {MAX_BLOCKS:,}")
    return replace(
        machine,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        # A server takes no context that the whole pool could not hold; a state is written while
        # the one before is read. Source: MambaSpec.max_memory_usage_bytes (vLLM 0.32.0)
        max_model_tokens=min(
            limits.max_model_tokens or machine.max_model_tokens,
            machine.pool_tokens - 2 * machine.state_tokens,
        ),
    )


def _from_catalog(gpu_name: str, model_name: str, limits: Limits) -> Machine:
    if model_name not in MODELS:
        raise InputError(f"--model: {not_among(model_name, MODELS)}")
    gpu, model = GPUS[gpu_name], MODELS[model_name]
    if model.num_heads % limits.num_gpus:
        raise InputError(
            f"--num-gpus: {limits.num_gpus} GPUs cannot share the {model.num_heads} attention "
            f"heads of {model_name} evenly"
        )
    block_tokens, block_bytes, num_state_groups = block_layout(
        model, limits.block_tokens or BLOCK_TOKENS, limits.num_gpus
    )
    num_blocks = limits.num_blocks or blocks_that_fit(gpu, model, block_bytes, limits)
    least = 2 + 2 * num_state_groups
    if num_blocks < least and limits.num_blocks:
        raise InputError(f"--blocks: got {num_blocks}, {model_name} needs {least} or more")
    if num_blocks < least:
        raise InputError(
            f"{model_name} ({_weights_gib(model):.1f} GiB of weights) leaves no room for KV blocks "
            f"on {limits.num_gpus} x {gpu_name} ({gpu.memory_gib} GiB): give a larger --num-gpus, "
            "or --gpu-memory-utilization"
        )
    is_big = gpu.memory_gib >= BIG_MEMORY_GIB
    return Machine(
        name=gpu_name if limits.num_gpus == 1 else f"{limits.num_gpus}x{gpu_name}",
        model=model_name,
        cost=roofline(gpu, model, limits.num_gpus),
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        block_bytes=block_bytes,
        max_num_seqs=BIG_NUM_SEQS if is_big else NUM_SEQS,
        max_num_batched_tokens=BIG_BATCH_TOKENS if is_big else BATCH_TOKENS,
        max_model_tokens=model.max_context_tokens,
        request_s=ACHIEVED.request_s,
        pcie_bytes_s=gpu.pcie_gb_s * 1e9 * limits.num_gpus,
        num_state_groups=num_state_groups,
    )


def machine_of(cost: FittedLine, limits: Limits) -> Machine:
    """The server of an event log, whose gaps between turns hold the way of a request."""
    num_blocks, block_tokens = limits.num_blocks or 2, limits.block_tokens or BLOCK_TOKENS
    return Machine(
        name="log",
        model="",
        cost=cost,
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        block_bytes=0,
        max_num_seqs=limits.max_num_seqs or NUM_SEQS,
        max_num_batched_tokens=limits.max_num_batched_tokens or BATCH_TOKENS,
        max_model_tokens=limits.max_model_tokens or (num_blocks - 1) * block_tokens,
        request_s=0.0,
        pcie_bytes_s=PCIE_BYTES_S,
        num_state_groups=limits.num_state_groups,
    )


def _from_profile(profile: ServerProfile, model: str | None, limits: Limits) -> Machine:
    block_tokens = limits.block_tokens or profile.block_tokens
    return Machine(
        name=profile.name,
        model=model or profile.model,
        cost=profile.step,
        num_blocks=limits.num_blocks or profile.num_blocks,
        block_tokens=block_tokens,
        block_bytes=profile.kv_token_bytes * block_tokens,
        max_num_seqs=profile.max_num_seqs,
        max_num_batched_tokens=profile.max_num_batched_tokens,
        max_model_tokens=profile.max_model_tokens,
        request_s=profile.request_s,
        pcie_bytes_s=PCIE_BYTES_S,
        num_state_groups=profile.num_state_groups,
    )


def block_layout(model: ModelShape, block_tokens: int, num_gpus: int) -> tuple[int, int, int]:
    """Tokens and bytes of a block over all cards, and the number of groups of recurrent layers.

    A state takes one block of its layer, so blocks grow until one has room for it; recurrent
    layers form groups of as many as have attention. `block_tokens` is --block-size. Source:
    Platform._align_hybrid_block_size (vllm/platforms/interface.py) and
    _get_kv_cache_groups_uniform_page_size (vllm/v1/core/kv_cache_utils.py, 0.32.0).
    """
    # with more cards than KV heads each card has a copy of one
    num_kv_heads = max(model.num_kv_heads, num_gpus)
    layer_token_bytes = 2 * num_kv_heads * model.head_size * model.dtype_bytes
    num_states = math.ceil(model.state_bytes / (block_tokens * layer_token_bytes))
    block_tokens *= max(1, num_states)
    num_groups = math.ceil(model.num_state_layers / model.num_attention_layers)
    return block_tokens, model.num_attention_layers * layer_token_bytes * block_tokens, num_groups


def blocks_that_fit(gpu: GPU, model: ModelShape, block_bytes: int, limits: Limits) -> int:
    """Blocks in the memory that vLLM may take, less weights and working space.

    Source: 10.55 GiB = 5,402 blocks of 2 MiB for Llama-3.1-8B on an RTX 5090 at 0.85.
    """
    card_gib = gpu.memory_gib * limits.memory_utilization - ACHIEVED.overhead_gib
    usable_gib = limits.num_gpus * card_gib - _weights_gib(model)
    return max(0, math.floor(usable_gib * GIB / block_bytes))


def _weights_gib(model: ModelShape) -> float:
    return model.num_parameters * model.dtype_bytes / GIB


def _blocks(text: str) -> int | str:
    """Type of a flag: blocks in the pool."""
    if text == INFINITE or (text.isdecimal() and int(text) >= 2):
        return text if text == INFINITE else int(text)
    raise argparse.ArgumentTypeError(f"got {text!r}, allowed is a number from 2 on, or {INFINITE}")


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags that describe one machine."""
    add = parser.add_argument_group("machine").add_argument
    count = whole_number(1)
    gpus = f"one of {', '.join(GPUS)}, or a profile written by calibrate"
    add("--gpu", required=True, metavar="NAME|FILE", help=gpus)
    models = f"one of {', '.join(MODELS)} (default llama-3.1-8b)"
    add("--model", metavar="NAME", help=models)
    add("--num-gpus", type=count, default=1, metavar="N", help="tensor parallel (default 1)")
    pool = "KV blocks in the pool, as --num-gpu-blocks-override (default: what fits the GPU)"
    add("--blocks", type=_blocks, metavar="N|infinite", help=pool)
    add("--block-size", type=count, metavar="TOKENS", help="tokens per block (default 16)")
    add(
        "--gpu-memory-utilization",
        type=share,
        default=GPU_MEMORY_UTILIZATION,
        metavar="X",
        help="share of the memory that the server takes (default %(default)s, vLLM's)",
    )
    add("--max-num-seqs", type=count, metavar="N", help="running turns at most (vLLM's default)")
    batch = "tokens of one step at most (vLLM's default)"
    add("--max-num-batched-tokens", type=count, metavar="N", help=batch)
    longest = "longest context taken (default: the model's, or the pool's if that is less)"
    add("--max-model-len", type=count, metavar="TOKENS", help=longest)
