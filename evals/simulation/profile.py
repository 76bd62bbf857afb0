"""The file that `agentkv simulate calibrate` writes and `--gpu FILE` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .cost import FittedLine
from .errors import SimulationError

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
