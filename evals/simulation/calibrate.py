"""`agentkv simulate calibrate`: fit the simulator's times to a running, otherwise idle server.

Sends a few hundred short completions, which takes minutes on a small CPU server, and writes a
profile that `agentkv simulate --gpu FILE` takes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from agentkv.errors import AgentKVError

from ..options import whole_number
from ..server import BlockPool, ServerFacts, ServerUnderTest
from ..workload.sample_text import sample_text
from . import catalog
from .cost_fit import Fit, TimedStep, fit
from .profile import Profile
from .step_timing import DEFAULT_ROUNDS, StepTimer

DONE, FAILED, BAD_USAGE = 0, 1, 2
MAX_TRUSTED_ERROR = 0.25
"""Share by which a fitted time may miss the measured one before the user is told."""
_SAMPLE_CHARS = 30_000


def main(argv: Sequence[str] | None = None) -> int:
    """0: the profile is written; 1: it is measured and printed alone; 2: nothing was measured."""
    options = _parser().parse_args(argv)
    out = Path(options.out)
    say = partial(print, file=sys.stderr, flush=True)
    try:
        if out.exists() and not options.force:
            raise AgentKVError(f"{out} exists: choose another --out, or --force")
        out.parent.mkdir(parents=True, exist_ok=True)  # before minutes of measuring
        profile = _measure(options, say)
    except (AgentKVError, httpx.HTTPError, OSError) as error:
        print(f"agentkv simulate calibrate: {error}", file=sys.stderr)
        return BAD_USAGE
    say(_summary(profile))
    if profile.measured["max_error"] > MAX_TRUSTED_ERROR:
        say(
            "the times do not lie on a line: if the machine was busy with something else, try "
            "again, or with more --rounds"
        )
    print(json.dumps(profile.model_dump(mode="json")), flush=True)
    try:
        out.write_text(profile.model_dump_json(indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        print(f"agentkv simulate calibrate: {out} cannot be written: {error}", file=sys.stderr)
        return FAILED
    say(f"written to {out}")
    return DONE


def _measure(options: argparse.Namespace, say: Any) -> Profile:
    with ServerUnderTest(options.base_url, api_key=options.api_key) as server:
        facts = server.facts(options.model)
        [token_ids] = server.tokenize(facts.model, [sample_text()[:_SAMPLE_CHARS]])
        root_url = server.root_url
        pool = server.block_pool(facts)
    max_tokens = min(
        facts.max_context_tokens or pool.num_blocks * pool.block_size,
        options.max_num_batched_tokens,
    )
    with StepTimer(
        root_url,
        facts.model,
        token_ids,
        api_key=options.api_key,
        max_tokens=max_tokens,
        seed=options.seed,
    ) as timer:
        steps = timer.time_all(options.rounds, say)
    return _profile(options, facts, pool, steps, fit(steps))


def _profile(
    options: argparse.Namespace,
    facts: ServerFacts,
    pool: BlockPool,
    steps: Sequence[TimedStep],
    found: Fit,
) -> Profile:
    step = {name: getattr(found.cost, name) for name in found.cost.__slots__}
    return Profile.model_validate(
        {
            "name": options.name,
            "model": facts.model,
            "step": step,
            "request_s": found.request_s,
            "num_blocks": pool.num_blocks + 1,  # and the null block
            "block_tokens": pool.block_size,
            "kv_token_bytes": options.kv_token_bytes,
            "max_num_seqs": options.max_num_seqs,
            "max_num_batched_tokens": options.max_num_batched_tokens,
            "max_model_tokens": facts.max_context_tokens or pool.num_blocks * pool.block_size,
            "measured": {
                "vllm_version": facts.vllm_version,
                "mean_error": found.mean_error,
                "max_error": found.max_error,
                "steps": [_describe(timed, found) for timed in steps],
            },
        }
    )


def _describe(step: TimedStep, found: Fit) -> dict[str, float]:
    fitted_s = found.cost.step_s(step.batch) + step.has_request * found.request_s
    return {
        "prefill_tokens": step.batch.prefill_tokens,
        "decodes": step.batch.num_decodes,
        "context_tokens": step.batch.context_tokens,
        "measured_s": step.seconds,
        "fitted_s": fitted_s,
    }


def _summary(profile: Profile) -> str:
    step, measured = profile.step, profile.measured
    return (
        f"a step {step.fixed_s * 1e3:.2f} ms, a prefill token {step.prefill_token_s * 1e6:.1f} us, "
        f"a decode {step.decode_s * 1e3:.3f} ms, 1,000 tokens of context "
        f"{step.context_token_s * 1e6:.2f} ms, a request {profile.request_s * 1e3:.1f} ms; off by "
        f"{measured['mean_error']:.0%} on average, {measured['max_error']:.0%} at most"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentkv simulate calibrate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--base-url", required=True, metavar="URL", help="the server, with or without /v1")
    add("--out", required=True, metavar="FILE", help="where the profile goes")
    add("--name", default="calibrated", help="what the machine is called in results")
    add("--model", help="default: the first that the server offers")
    add("--api-key", help="sent as a bearer token")
    add(
        "--max-num-seqs",
        type=whole_number(1),
        default=catalog.NUM_SEQS,
        metavar="N",
        help="as the server was started; it does not tell (default %(default)s)",
    )
    add(
        "--max-num-batched-tokens",
        type=whole_number(1),
        default=catalog.BATCH_TOKENS,
        metavar="N",
        help="as the server was started; it does not tell (default %(default)s)",
    )
    add(
        "--kv-token-bytes",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="bytes of KV per token, which only +offload needs",
    )
    add(
        "--rounds",
        type=whole_number(1),
        default=DEFAULT_ROUNDS,
        metavar="N",
        help="times each probe is sent; the fastest counts (default %(default)s)",
    )
    add("--seed", type=int, default=0, help="of the prompts (default %(default)s)")
    add("--force", action="store_true", help="overwrite the file")
    return parser
