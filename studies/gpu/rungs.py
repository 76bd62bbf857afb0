"""The ladder: ways to run a vLLM that was cut down, from all of it to the least that measures.

`find_rung` starts a server of a tiny model on each until one completes a prompt.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from agentkv.errors import AgentKVError
from agentkv.server.process import ServerProcess

from .compare import DRY_RUN
from .random_model import write_random_model

TINY = DRY_RUN.model
READY_S, ANSWER_S = 240.0, 60.0
_OWN_LAYERS = ("--compilation-config", json.dumps({"custom_ops": ["none"]}))
_TRITON = ("--attention-backend", "TRITON_ATTN", *_OWN_LAYERS)
_NO_FLASHINFER = {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
_STUB = """import sys
from importlib.machinery import ModuleSpec


class NoLibrary:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name == "vllm._C_stable_libtorch" else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        import torch

        module.library = torch.library.Library("_C", "FRAGMENT")
        for name in (
            "cutlass_scaled_mm_supports_fp8",
            "cutlass_scaled_mm_supports_block_fp8",
            "cutlass_group_gemm_supported",
        ):
            module.library.define(f"{name}(int capability) -> bool")
            module.library.impl(name, lambda capability: False, "CompositeExplicitAutograd")


sys.meta_path.insert(0, NoLibrary())
"""
"""vLLM's CUDA platform imports its library at once, and asks it what it can do when layers are
imported: nothing."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One way to run vLLM: flags of its server, variables, whether its library is loaded."""

    name: str
    flags: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    has_library: bool = True

    def environment(self, folder: Path) -> dict[str, str]:
        """Variables of its processes; `folder` takes the module in place of the library."""
        found = dict(self.variables)
        if not self.has_library:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "sitecustomize.py").write_text(_STUB, encoding="utf-8")
            rest = os.environ.get("PYTHONPATH")
            found["PYTHONPATH"] = os.pathsep.join(
                [str(folder.resolve()), *([rest] if rest else [])]
            )
        return found


RUNGS = (
    Rung("whole", variables=_NO_FLASHINFER),
    Rung("no-library", _TRITON, _NO_FLASHINFER, has_library=False),
    Rung("eager", (*_TRITON, "--enforce-eager"), _NO_FLASHINFER, has_library=False),
)
"""The library as it is; without it Triton's attention and PyTorch's own layers; no compilation.
FlashInfer, 3 GB, is never there."""


def find_rung(out: Path, rungs: Sequence[Rung] = RUNGS, *, limit_s: float) -> Rung | None:
    """The first rung on which a server of a tiny model completes a prompt; None if there is none,
    or `limit_s` was over before it was found.

    Which rungs failed, and which did not, is kept in `out`, with the log of each server.
    """
    end_s = time.monotonic() + limit_s
    kept = out / "rungs.json"
    known: dict[str, bool] = json.loads(kept.read_text()) if kept.exists() else {}
    out.mkdir(parents=True, exist_ok=True)
    model = write_random_model(out / TINY, TINY)
    for rung in rungs:
        if rung.name not in known:
            left_s = end_s - time.monotonic()
            if left_s <= 0.0:
                return None
            known[rung.name] = _answers(rung, model, out, min(left_s, READY_S))
            if not known[rung.name] and time.monotonic() >= end_s:
                return None  # cut off, which does not show that it fails
            kept.write_text(json.dumps(known))
        if known[rung.name]:
            print(f"rung: {rung.name}", file=sys.stderr, flush=True)
            return rung
    return None


def _answers(rung: Rung, model: Path, out: Path, ready_timeout_s: float) -> bool:
    server = ServerProcess(
        model,
        policy="agentkv",
        args=("--load-format", "dummy", "--max-model-len", "1024", *rung.flags),
        log_path=out / f"rung-{rung.name}.log",
        environment=rung.environment(out / "stub"),
        ready_timeout_s=ready_timeout_s,
    )
    try:
        with server:
            body = {"model": str(model), "prompt": list(range(64)), "max_tokens": 8}
            url = f"{server.base_url}/completions"
            httpx.post(url, json=body, timeout=ANSWER_S).raise_for_status()
    except (AgentKVError, httpx.HTTPError) as error:
        reason = str(error).splitlines()[0]
        print(f"rung {rung.name}: {reason}: {server.log_path}", file=sys.stderr, flush=True)
        return False
    return True
