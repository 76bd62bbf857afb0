"""The cost of a step: the roofline's parts, and what it says of the reference experiment."""

from __future__ import annotations

import pytest

from agentkv.evals.simulator.catalog import GPUS, MODELS
from agentkv.evals.simulator.cost import Batch, FittedLine, roofline

LLAMA_ON_5090 = roofline(GPUS["rtx-5090"], MODELS["llama-3.1-8b"], 1)


def prefill(new_tokens: int, past_tokens: int = 0) -> Batch:
    batch = Batch()
    batch.add_prefill(new_tokens, past_tokens)
    return batch


def decode(*past_tokens: int) -> Batch:
    batch = Batch()
    for tokens in past_tokens:
        batch.add_decode(tokens)
    return batch


def test_a_decode_takes_the_reading_of_the_weights() -> None:
    """A decode takes one reading of the weights and the fixed cost: 12.2 ms for an 8B model."""
    assert LLAMA_ON_5090.step_s(decode(0)) == pytest.approx(0.0122, rel=0.01)


def test_a_batch_of_decodes_reads_the_weights_once() -> None:
    """A batch of sixteen short decodes reads the weights once, like one."""
    assert LLAMA_ON_5090.step_s(decode(*[100] * 16)) < 1.05 * LLAMA_ON_5090.step_s(decode(100))


def test_each_context_token_is_read_in_each_step() -> None:
    """Each decode reads the KV of its context at 80% of the bandwidth."""
    more_s = LLAMA_ON_5090.step_s(decode(100_000)) - LLAMA_ON_5090.step_s(decode(0))
    assert more_s == pytest.approx(100_000 * 131_072 / (1792e9 * 0.8), rel=0.01)


def test_a_long_prefill_takes_its_flops() -> None:
    """Twice the prefill takes twice the time, and a little more for attention."""
    ratio = LLAMA_ON_5090.step_s(prefill(4096)) / LLAMA_ON_5090.step_s(prefill(2048))
    assert 1.95 < ratio < 2.2


def test_pairs_count_what_a_causal_mask_leaves() -> None:
    """Pairs are those that a causal mask leaves: 6 + 7 + 8 for three tokens behind five."""
    assert prefill(3, 5).prefill_pairs == 6 + 7 + 8


def test_two_cards_are_faster_but_not_twice() -> None:
    """Two cards are faster than one, but by less than a factor of two."""
    two = roofline(GPUS["rtx-5090"], MODELS["llama-3.1-8b"], 2)
    speedup = LLAMA_ON_5090.step_s(prefill(4096)) / two.step_s(prefill(4096))
    assert 1.5 < speedup < 2.0


@pytest.mark.parametrize(
    ("prompt", "hit", "output", "measured_ms"),
    [(131, 64, 9, 115), (279, 128, 12, 154), (397, 272, 8, 106), (503, 384, 7, 98)],
)
def test_the_reference_job_is_reproduced(
    prompt: int, hit: int, output: int, measured_ms: float
) -> None:
    """Turns 2 to 5 of the reference's single job on an RTX 5090 are reproduced within 6%."""
    seconds = 0.005 + LLAMA_ON_5090.step_s(prefill(prompt - hit, hit))
    for step in range(output - 1):
        seconds += LLAMA_ON_5090.step_s(decode(prompt + step))
    assert seconds * 1000 == pytest.approx(measured_ms, rel=0.06)


def test_a_fitted_line_adds_up() -> None:
    """A fitted line counts each constant as often as the batch has its part."""
    line = FittedLine(1.0, 10.0, 100.0, 1000.0, 10_000.0)
    batch = prefill(2, 1)
    batch.add_decode(3)
    assert line.step_s(batch) == 1 + 2 * 10 + 5 * 100 + 1000 + 4 * 10_000
