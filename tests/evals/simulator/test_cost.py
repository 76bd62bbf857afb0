"""The cost of a step: the roofline's parts, and what it says of the reference experiment."""

from __future__ import annotations

import pytest

from agentkv.evals.simulator.cost import GPUS, MODELS, FittedLine, StepBatch, roofline

step_s = roofline(GPUS["rtx-5090"], MODELS["llama-3.1-8b"], 1).step_s


def test_decodes_read_the_weights_once_and_each_context() -> None:
    """A decode takes 12.2 ms for an 8B model, 16 hardly more; KV is read at 80% of bandwidth."""
    one_s = step_s(StepBatch.of_decodes(1, 0))
    assert one_s == pytest.approx(0.0122, rel=0.01)
    assert step_s(StepBatch.of_decodes(16, 100)) < 1.05 * step_s(StepBatch.of_decodes(1, 100))
    more_s = step_s(StepBatch.of_decodes(1, 100_000)) - one_s
    assert more_s == pytest.approx(100_000 * 131_072 / (1792e9 * 0.8), rel=0.01)


def test_a_long_prefill_takes_its_flops() -> None:
    """Twice the prefill takes twice the time and a little more; two cards are not twice as fast."""
    whole_s, half_s = (step_s(StepBatch.of_prefill(tokens)) for tokens in (4096, 2048))
    assert 1.95 < whole_s / half_s < 2.2
    two = roofline(GPUS["rtx-5090"], MODELS["llama-3.1-8b"], 2)
    assert 1.5 < whole_s / two.step_s(StepBatch.of_prefill(4096)) < 2.0


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


def test_a_fitted_line_adds_up() -> None:
    """A fitted line counts each constant by the batch: pairs of two tokens behind one are 2 + 3."""
    line = FittedLine(1.0, 10.0, 100.0, 1000.0, 10_000.0)
    batch = StepBatch.of_prefill(2, 1)
    batch.add_decode(3)
    assert line.step_s(batch) == 1 + 2 * 10 + 5 * 100 + 1000 + 4 * 10_000
