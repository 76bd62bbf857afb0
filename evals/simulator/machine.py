"""The server that is simulated: what a step costs, how much memory there is, what its limits are.

Made from names in the catalog or from the profile that `agentkv simulate calibrate` writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentkv.errors import AgentKVError

from ..workload.plans import JobPlan
from . import catalog
from .catalog import ACHIEVED, GPU, ModelShape
from .cost import Batch, CostModel, FittedLine, kv_token_bytes, roofline

GIB = 1024**3
DEFAULT_DRAM_GIB = 64.0
MAX_BLOCKS = 6_000_000
"""Blocks are objects: this many take 1.5 GB."""


@dataclass(frozen=True, slots=True)
class Limits:
    """vLLM's flags that bound memory and batches; None is vLLM's own default."""

    num_blocks: int | None = None
    block_tokens: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_tokens: int | None = None
    num_gpus: int = 1
    memory_utilization: float = catalog.GPU_MEMORY_UTILIZATION


@dataclass(frozen=True, slots=True)
class Machine:
    """One server; `num_blocks` counts the null block, as vLLM's `num_gpu_blocks` does.

    `request_s` passes between a client's sending and the engine's having the request;
    `pcie_bytes_s` is the rate of reloads from DRAM.
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

    def with_blocks(self, num_blocks: int) -> Machine:
        """The same server with another pool."""
        return replace(self, num_blocks=num_blocks)

    def as_dict(self) -> dict[str, Any]:
        """The machine as rows and reports carry it."""
        fields = asdict(self)
        fields["cost"] = {"kind": type(self.cost).__name__, **fields["cost"]}
        return fields


def make_machine(gpu: str, model: str | None, limits: Limits) -> Machine:
    """The machine that flags describe: a GPU and a model by name, or a profile's file.

    Raises SimulationError for a name that is not known, for a model that does not fit, and for
    limits that vLLM or this machine's memory would not take.
    """
    machine = _named(gpu, model, limits)
    if machine.max_num_batched_tokens < machine.max_num_seqs:
        raise SimulationError(
            f"--max-num-batched-tokens: got {machine.max_num_batched_tokens}, vLLM takes no fewer "
            f"than --max-num-seqs, {machine.max_num_seqs}"
        )
    if machine.num_blocks > MAX_BLOCKS:
        raise SimulationError(
            f"--blocks: {machine.num_blocks:,} blocks, allowed are {MAX_BLOCKS:,}"
        )
    return machine


def _named(gpu: str, model: str | None, limits: Limits) -> Machine:
    if gpu in catalog.GPUS:
        return _from_catalog(gpu, model or "llama-3.1-8b", limits)
    if not Path(gpu).is_file():
        raise SimulationError(
            f"--gpu: got {gpu!r}, allowed are {', '.join(catalog.GPUS)}, or the file of a profile "
            "that `agentkv simulate calibrate` wrote"
        )
    return _from_profile(read_profile(Path(gpu)), model, limits)


def _from_catalog(gpu_name: str, model_name: str, limits: Limits) -> Machine:
    if model_name not in catalog.MODELS:
        raise SimulationError(
            f"--model: got {model_name!r}, allowed are {', '.join(catalog.MODELS)}"
        )
    gpu, model = catalog.GPUS[gpu_name], catalog.MODELS[model_name]
    block_tokens = limits.block_tokens or catalog.BLOCK_TOKENS
    num_blocks = limits.num_blocks
    if num_blocks is None:
        num_blocks = blocks_that_fit(gpu, model, block_tokens, limits)
        if num_blocks < 2:
            raise SimulationError(_too_big(gpu_name, gpu, model_name, model, limits))
    is_big = gpu.memory_gib >= catalog.BIG_MEMORY_GIB
    max_num_batched_tokens = limits.max_num_batched_tokens or (
        catalog.BIG_BATCH_TOKENS if is_big else catalog.BATCH_TOKENS
    )
    max_num_seqs = catalog.BIG_NUM_SEQS if is_big else catalog.NUM_SEQS
    return Machine(
        name=gpu_name if limits.num_gpus == 1 else f"{limits.num_gpus}x{gpu_name}",
        model=model_name,
        cost=roofline(gpu, model, limits.num_gpus),
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        block_bytes=block_bytes(model, block_tokens),
        max_num_seqs=limits.max_num_seqs or min(max_num_seqs, max_num_batched_tokens),
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_tokens=_max_model_tokens(
            limits.max_model_tokens or model.max_context_tokens, num_blocks, block_tokens
        ),
        request_s=ACHIEVED.request_s,
        pcie_bytes_s=gpu.pcie_gb_s * 1e9 * limits.num_gpus,
    )


def _from_profile(profile: Profile, model: str | None, limits: Limits) -> Machine:
    num_blocks = limits.num_blocks or profile.num_blocks
    block_tokens = limits.block_tokens or profile.block_tokens
    max_num_batched_tokens = limits.max_num_batched_tokens or profile.max_num_batched_tokens
    return Machine(
        name=profile.name,
        model=model or profile.model,
        cost=profile.cost,
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        block_bytes=profile.kv_token_bytes * block_tokens,
        max_num_seqs=limits.max_num_seqs or min(profile.max_num_seqs, max_num_batched_tokens),
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_tokens=_max_model_tokens(
            limits.max_model_tokens or profile.max_model_tokens, num_blocks, block_tokens
        ),
        request_s=profile.request_s,
        pcie_bytes_s=catalog.PCIE4_GB_S * 1e9,
    )


def _max_model_tokens(wanted: int, num_blocks: int, block_tokens: int) -> int:
    """A server takes no context that the whole pool, less the null block, could not hold."""
    return min(wanted, (num_blocks - 1) * block_tokens)


def block_bytes(model: ModelShape, block_tokens: int) -> int:
    """Bytes of one block, over all cards."""
    return kv_token_bytes(model) * block_tokens


def blocks_that_fit(gpu: GPU, model: ModelShape, block_tokens: int, limits: Limits) -> int:
    """Blocks in what vLLM may take of the memory, less weights and working space.

    Source: 10.55 GiB = 5,402 blocks of 2 MiB for Llama-3.1-8B on an RTX 5090 at 0.85.
    """
    usable_gib = (
        limits.num_gpus * (gpu.memory_gib * limits.memory_utilization - ACHIEVED.overhead_gib)
        - model.num_parameters * model.dtype_bytes / GIB
    )
    return max(0, math.floor(usable_gib * GIB / block_bytes(model, block_tokens)))


def _too_big(gpu_name: str, gpu: GPU, model_name: str, model: ModelShape, limits: Limits) -> str:
    weights_gib = model.num_parameters * model.dtype_bytes / GIB
    a_card_gib = gpu.memory_gib * limits.memory_utilization - ACHIEVED.overhead_gib
    needed = math.floor(weights_gib / a_card_gib) + 1 if a_card_gib > 0 else 0
    advice = f"--num-gpus {needed} or more" if needed else "a higher --gpu-memory-utilization"
    return (
        f"{model_name} ({weights_gib:.1f} GiB of weights) leaves no room for KV blocks on "
        f"{limits.num_gpus} x {gpu_name} ({gpu.memory_gib} GiB); use {advice}"
    )


class SimulationError(AgentKVError, ValueError):
    """A machine, model or policy that cannot be simulated; the text says what is allowed."""


class StuckError(AgentKVError):
    """Requests wait and nothing that could ever happen would let them run."""


FORMAT = "agentkv-profile-1"


class _Step(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    fixed_s: float = Field(gt=0, allow_inf_nan=False)
    prefill_token_s: float = Field(ge=0, allow_inf_nan=False)
    prefill_pair_s: float = Field(ge=0, allow_inf_nan=False)
    decode_s: float = Field(ge=0, allow_inf_nan=False)
    context_token_s: float = Field(ge=0, allow_inf_nan=False)


class Profile(BaseModel):
    """A server as it was measured; times in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: str = Field(FORMAT, pattern=f"^{FORMAT}$")
    name: str
    model: str
    step: _Step
    request_s: float = Field(ge=0, allow_inf_nan=False)
    num_blocks: int = Field(ge=2)
    block_tokens: int = Field(ge=1)
    kv_token_bytes: int = Field(0, ge=0)
    """Only the offload tier needs it; 0 where it is not known."""
    max_num_seqs: int = Field(ge=1)
    max_num_batched_tokens: int = Field(ge=1)
    max_model_tokens: int = Field(ge=1)
    measured: dict[str, Any] = Field(default_factory=dict)
    """What the constants were fitted to, and how well."""

    @property
    def cost(self) -> FittedLine:
        return FittedLine(**self.step.model_dump())


def read_profile(path: Path) -> Profile:
    """Read a profile; SimulationError names the file, the field and the value seen."""
    try:
        return Profile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise SimulationError(f"{path}: cannot be read: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the file"
        raise SimulationError(
            f"{path}: {field}: {first['msg']}, got {str(first['input'])[:80]}"
        ) from None


@dataclass(frozen=True, slots=True)
class TurnAlone:
    """One turn with the machine to itself; `prompt_tokens` is the whole prompt."""

    prompt_tokens: int
    prefill_s: float
    decode_s: float


def alone_s(job: JobPlan, machine: Machine) -> float:
    """Seconds from arrival to end of a job on an empty server that keeps its whole context."""
    total_s = 0.0
    for turn, alone in zip(job.turns, turns_alone(job, machine), strict=True):
        total_s += machine.request_s + turn.tool_s
        total_s += alone.prefill_s
        total_s += alone.decode_s
    return total_s - job.turns[-1].tool_s


def turns_alone(job: JobPlan, machine: Machine) -> Iterator[TurnAlone]:
    """Each turn of a job on an empty server that keeps its whole context."""
    computed_tokens = 0
    for number, turn in enumerate(job.turns):
        prompt_tokens = job.prompt_tokens(number)
        hit_tokens = min(computed_tokens, prompt_tokens - 1)
        hit_tokens -= hit_tokens % machine.block_tokens
        yield TurnAlone(
            prompt_tokens,
            _prefill_s(hit_tokens, prompt_tokens, machine),
            _decode_s(prompt_tokens, turn.output_tokens - 1, machine),
        )
        computed_tokens = prompt_tokens + turn.output_tokens - 1


def _prefill_s(hit_tokens: int, prompt_tokens: int, machine: Machine) -> float:
    total_s = 0.0
    while hit_tokens < prompt_tokens:
        chunk_tokens = min(machine.max_num_batched_tokens, prompt_tokens - hit_tokens)
        batch = Batch()
        if chunk_tokens == 1:
            batch.add_decode(hit_tokens)
        else:
            batch.add_prefill(chunk_tokens, hit_tokens)
        total_s += machine.cost.step_s(batch)
        hit_tokens += chunk_tokens
    return total_s


def _decode_s(past_tokens: int, num_steps: int, machine: Machine) -> float:
    total_s = 0.0
    for step in range(num_steps):
        batch = Batch()
        batch.add_decode(past_tokens + step)
        total_s += machine.cost.step_s(batch)
    return total_s
