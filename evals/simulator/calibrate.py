"""`agentkv simulate calibrate`: fit the simulator's times to a running, otherwise idle server.

Sends a few hundred short completions, which takes minutes on a small CPU server, and writes a
profile that `agentkv simulate --gpu FILE` takes.

    agentkv simulate calibrate --base-url http://127.0.0.1:8000 --out my-server.json
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from scipy.optimize import nnls

from agentkv.command_line import DONE, command_parser, url, whole_number
from agentkv.errors import RunError
from agentkv.integrations.vllm.watch.job_view import TurnView
from agentkv.protocol import LARGE_HIT_UNIT_TOKENS

from ..options import add_server
from ..rows import require_free
from ..server import ServerUnderTest
from .cost import BATCH_TOKENS, NUM_SEQS, FittedLine, StepBatch
from .machine import ServerProfile

PREFILL_TOKENS = (16, 64, 128, 256, 512, 1024, 1536, 2048, 4096, 7900)
DECODE_BATCHES = (
    *((1, 64), (1, 512), (1, 1536), (2, 256), (4, 64), (4, 768), (8, 256)),
    *((1, 7600), (4, 7600), (16, 2000), (32, 1000), (64, 500)),
)
"""(concurrent requests, tokens of each prompt); the later ones are for large servers."""
MAX_PROBE_STEPS = 8
"""Steps that the prompts of a probe may take, so that a small server is not kept for minutes."""
DECODE_S = 1.0
"""Approximate time for which a completion decodes."""
MIN_DECODE_TOKENS, MAX_DECODE_TOKENS = 32, 256
MAX_FITTED = 1000
"""Turns of an event log to which times are fitted. Chosen."""
_TIMEOUT_S = 300.0
Probe = tuple[int, int, int]
"""(concurrent requests, tokens of each prompt, tokens of each output)."""


def main(argv: Sequence[str] | None = None) -> int:
    """0: the profile is written. Raises where nothing was measured."""
    options = _parser().parse_args(argv)
    out = Path(options.out)
    report = partial(print, file=sys.stderr, flush=True)
    limits = {name: getattr(options, name) for name in ("max_num_seqs", "max_num_batched_tokens")}
    require_free(out, force=options.force)
    out.parent.mkdir(parents=True, exist_ok=True)  # before minutes of measuring
    profile = measure(
        options.base_url,
        {"name": out.stem, **limits},
        model=options.model,
        api_key=options.api_key,
        num_rounds=options.rounds,
        report=report,
    )
    step, measured = profile.step, profile.measured
    report(
        f"a step {step.fixed_s * 1e3:.2f} ms, a prefill token {step.prefill_token_s * 1e6:.1f} us, "
        f"a decode {step.decode_s * 1e3:.3f} ms, 1,000 tokens of context "
        f"{step.context_token_s * 1e6:.2f} ms, a request {profile.request_s * 1e3:.1f} ms; off by "
        f"{measured['mean_error']:.0%} on average, {measured['max_error']:.0%} at most"
    )
    out.write_text(profile.model_dump_json(indent=1) + "\n", encoding="utf-8")
    report(f"written to {out}")
    return DONE


def measure(
    base_url: str,
    started_as: Mapping[str, Any],
    *,
    model: str | None = None,
    api_key: str | None = None,
    num_rounds: int,
    report: Callable[[str], None],
) -> ServerProfile:
    """Time a running, otherwise idle server, and fit a profile to it.

    `started_as` has the fields of the profile that a server does not tell: its flags, and a name.
    Raises AgentKVError and httpx.HTTPError.
    """
    with ServerUnderTest(base_url, api_key=api_key) as server:
        facts = server.facts(model)
        token_ids = server.vocabulary(facts.model)
        root_url = server.root_url
        pool = server.block_pool(facts)
        num_state_groups = state_groups_of(facts.info, pool.block_size)
    pool_tokens = pool.num_blocks * pool.block_size
    max_tokens = facts.max_context_tokens or pool_tokens
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    with httpx.Client(base_url=root_url, headers=headers, timeout=_TIMEOUT_S) as http:
        steps = ProbeTimer(partial(complete, http, facts.model), token_ids).time_all(
            num_rounds,
            report,
            max_tokens=min(max_tokens, started_as["max_num_batched_tokens"]),
            pool_tokens=pool_tokens,
            max_num_seqs=started_as["max_num_seqs"],
        )
    found = fit(steps)
    measured = {
        "vllm_version": facts.vllm_version,
        "mean_error": found.mean_error,
        "max_error": found.max_error,
        "steps": [asdict(step) for step in steps],
    }
    return ServerProfile(
        **started_as,
        step=found.cost,
        request_s=found.request_s,
        measured=measured,
        model=facts.model,
        num_blocks=pool.num_blocks + 1,  # and the null block
        block_tokens=pool.block_size,
        max_model_tokens=max_tokens,
        num_state_groups=num_state_groups,
    )


def state_groups_of(info: Mapping[str, Any] | None, block_tokens: int) -> int:
    """Groups of recurrent layers, which only a server with the plugin tells."""
    if info is None and block_tokens > LARGE_HIT_UNIT_TOKENS:
        raise RunError(
            f"blocks of {block_tokens} tokens: recurrent layers are measured under agentkv's "
            "policies alone, which tell how many groups of them there are"
        )
    return int((info or {}).get("num_state_groups", 0))


@dataclass(frozen=True, slots=True)
class TimedStep:
    """Measured seconds of one step with this batch, with or without a request's latency; or of
    several, with all that they compute."""

    batch: StepBatch
    seconds: float
    has_request: bool
    num_steps: int = 1

    def terms(self) -> tuple[float, ...]:
        """What each constant is multiplied by: `request_s`, then FittedLine's in their order."""
        batch = self.batch
        return (
            *(self.has_request, self.num_steps, batch.prefill_tokens, batch.prefill_pairs),
            *(batch.num_decodes, batch.context_tokens),
        )


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted constants, and their errors: the mean and largest share of a measured time."""

    cost: FittedLine
    request_s: float
    mean_error: float
    max_error: float


def fit(steps: Sequence[TimedStep]) -> Fit:
    """Least squares of the relative errors, no constant below zero."""
    seconds = np.array([step.seconds for step in steps])
    relative = np.array([step.terms() for step in steps]) / seconds[:, None]
    # Scaled, since pairs run to millions and requests are one.
    scale = np.abs(relative).max(axis=0)
    scale[scale == 0.0] = 1.0
    constants = nnls(relative / scale, np.ones(len(steps)))[0] / scale
    errors = np.abs(relative @ constants - 1.0)
    request_s, fixed_s, *rest = (float(constant) for constant in constants)
    # A step that costs nothing at all would let a simulated clock stand still.
    cost = FittedLine(max(fixed_s, 1e-6), *rest)
    return Fit(cost, request_s, float(errors.mean()), float(errors.max()))


def fit_turns(turns: Sequence[TurnView]) -> FittedLine:
    """Fit the times of steps to what turns of an event log took, each from its blocks to its end.

    While a turn runs the engine makes a step for each of its tokens, computes the prompts that
    start meanwhile, and decodes a share of the others' tokens by how long they overlap. The last
    MAX_FITTED turns count.
    """
    known = [turn for turn in turns if not turn.preempted_s][-MAX_FITTED:]
    times_s = [(turn.started_s or 0.0, turn.ended_s or 0.0) for turn in known]
    tokens = [(turn.prompt_tokens, turn.hit_tokens, turn.output_tokens or 1) for turn in known]
    started_s, ended_s = np.array(times_s).T
    prompts, hits, outputs = np.array(tokens, float).T
    lasted_s = np.maximum(ended_s - started_s, 1e-6)
    both_end_s = np.minimum(ended_s[:, None], ended_s)
    overlap_s = np.maximum(0.0, both_end_s - np.maximum(started_s[:, None], started_s))
    decodes = (outputs - 1) * overlap_s / lasted_s
    is_meanwhile = (started_s >= started_s[:, None]) & (started_s < ended_s[:, None])
    sums = (
        is_meanwhile @ np.ones(len(known)),
        is_meanwhile @ (prompts - hits),
        is_meanwhile @ (prompts**2 - hits**2) / 2,
        is_meanwhile @ prompts,
        decodes.sum(axis=1),
        decodes @ (prompts + outputs / 2),
    )
    rows = zip(*(np.rint(column).astype(int).tolist() for column in sums), strict=True)
    steps = [
        TimedStep(StepBatch(*row), float(seconds), has_request=False, num_steps=int(num_steps))
        for row, seconds, num_steps in zip(rows, lasted_s, outputs, strict=True)
    ]
    cost = fit(steps).cost
    constants = [getattr(cost, field.name) for field in fields(cost)]
    fitted_s = sum(float(np.dot(constants, step.terms()[1:])) for step in steps)
    # relative errors favour the fast turns of a machine whose speed changes: the sum must be right
    return FittedLine(*(constant * float(lasted_s.sum()) / fitted_s for constant in constants))


def complete(
    http: httpx.Client, model: str, prompts: Sequence[list[int]], output_tokens: int
) -> None:
    """Complete all prompts at once; returns at the end of the last. Raises RunError."""
    body = {"model": model, "max_tokens": output_tokens, "temperature": 0, "ignore_eos": True}

    def one(prompt: list[int]) -> None:
        try:
            answer = http.post("/v1/completions", json=body | {"prompt": prompt})
        except httpx.HTTPError as error:
            raise RunError(f"{http.base_url}: no answer to a probe: {error}") from error
        if not answer.is_success:
            raise RunError(f"{answer.url}: HTTP {answer.status_code} {answer.text[:200]}")
        with suppress(LookupError, TypeError, ValueError):
            if answer.json()["usage"]["completion_tokens"] == output_tokens:
                return
        raise RunError(f"{answer.url}: no {output_tokens} tokens came: is it a vLLM server?")

    with ThreadPoolExecutor(len(prompts)) as pool:
        list(pool.map(one, prompts))


class ProbeTimer:
    """Times single steps of an engine from outside: prefills and decodes of known size.

    play: takes prompts and a number of tokens, completes all at once, returns after the last.

    Prompts are token ids that differ from the first token on, so none is cached. A decode step is
    the difference between completions of many tokens and of one, so it does not matter how the
    server bunches a stream's events.
    """

    def __init__(
        self, play: Callable[[Sequence[list[int]], int], object], token_ids: Sequence[int]
    ) -> None:
        self._play = play
        self._token_ids = token_ids
        self._rng = random.Random(0)

    def time_all(
        self,
        num_rounds: int,
        report: Callable[[str], None],
        *,
        max_tokens: int,
        pool_tokens: int,
        max_num_seqs: int,
    ) -> list[TimedStep]:
        """Time every probe that fits the longest context; the fastest of `num_rounds` counts.

        The rounds of a probe are far apart in time, so a busy minute spoils one round, not a probe.
        """
        for _ in range(2):  # the first ones warm the server up
            self._completions_s((1, 64, 1))
        decode_tokens = self._num_decode_tokens()
        prefills = [(1, num_tokens, 1) for num_tokens in PREFILL_TOKENS if num_tokens < max_tokens]
        batches = [
            (num_requests, num_tokens)
            for num_requests, num_tokens in DECODE_BATCHES
            if num_tokens + decode_tokens <= max_tokens
            and num_requests <= max_num_seqs
            and num_requests * (num_tokens + decode_tokens) <= pool_tokens
            and num_requests * num_tokens <= MAX_PROBE_STEPS * max_tokens
        ]
        decodes = [(*batch, output) for batch in batches for output in (1, decode_tokens)]
        fastest_s = dict.fromkeys([*prefills, *decodes], math.inf)
        for number in range(num_rounds):
            report(f"round {number + 1} of {num_rounds}: {len(fastest_s)} probes")
            for probe in fastest_s:
                fastest_s[probe] = min(fastest_s[probe], self._completions_s(probe))
        steps = [
            TimedStep(StepBatch.of_prefill(probe[1]), fastest_s[probe], has_request=True)
            for probe in prefills
        ]
        for num_requests, num_tokens in batches:
            short, long = ((num_requests, num_tokens, output) for output in (1, decode_tokens))
            more_s = fastest_s[long] - fastest_s[short]
            if more_s <= 0.0:
                raise RunError(
                    f"{decode_tokens} tokens of output took no longer than one: is something else "
                    "running on this server?"
                )
            batch = StepBatch.of_decodes(num_requests, num_tokens + decode_tokens // 2)
            steps.append(TimedStep(batch, more_s / (decode_tokens - 1), has_request=False))
        return steps

    def _num_decode_tokens(self) -> int:
        """Tokens that this server decodes in DECODE_S, including the first one's prefill."""
        seconds = self._completions_s((1, 16, MIN_DECODE_TOKENS))
        num_tokens = int(MIN_DECODE_TOKENS * DECODE_S / seconds)
        return min(max(num_tokens, MIN_DECODE_TOKENS), MAX_DECODE_TOKENS)

    def _completions_s(self, probe: Probe) -> float:
        """Seconds from sending concurrent requests to the end of the last."""
        num_requests, num_tokens, output_tokens = probe
        prompts = [self._rng.choices(self._token_ids, k=num_tokens) for _ in range(num_requests)]
        sent_s = time.monotonic()
        self._play(prompts, output_tokens)
        return time.monotonic() - sent_s


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("simulate calibrate", __doc__)
    add = parser.add_argument
    add(
        "--base-url", type=url, required=True, metavar="URL", help="the server, with or without /v1"
    )
    add("--out", required=True, metavar="FILE", help="where the profile goes")
    add_server(parser)
    count: dict[str, Any] = {"type": whole_number(1), "metavar": "N"}
    as_started = "as the server was started; it does not tell (default %(default)s)"
    add("--max-num-seqs", default=NUM_SEQS, help=as_started, **count)
    add("--max-num-batched-tokens", default=BATCH_TOKENS, help=as_started, **count)
    rounds = "times each probe is sent; the fastest counts (default %(default)s)"
    add("--rounds", default=4, help=rounds, **count)
    add("--force", action="store_true", help="overwrite the file")
    return parser
