"""Fitting a step's cost to measured times."""

from __future__ import annotations

import pytest

from agentkv.evals.simulator.calibrate import TimedStep, fit
from agentkv.evals.simulator.cost import Batch, FittedLine

TRUE = FittedLine(0.02, 0.001, 1e-6, 0.002, 4e-6)
REQUEST_S = 0.006


def batches() -> list[tuple[Batch, bool]]:
    found = []
    for num_tokens in (16, 64, 256, 512, 1024, 1536):
        batch = Batch()
        batch.add_prefill(num_tokens, 0)
        found.append((batch, True))
    for num_requests, num_tokens in ((1, 64), (1, 1500), (2, 300), (4, 700), (8, 200)):
        batch = Batch()
        for _ in range(num_requests):
            batch.add_decode(num_tokens)
        found.append((batch, False))
    return found


def timed(scale: float = 1.0) -> list[TimedStep]:
    return [
        TimedStep(
            batch,
            (TRUE.step_s(batch) + REQUEST_S * has_request) * scale ** (-1) ** index,
            has_request,
        )
        for index, (batch, has_request) in enumerate(batches())
    ]


def test_exact_times_give_the_constants_back() -> None:
    """All six, and no error."""
    found = fit(timed())
    assert found.request_s == pytest.approx(REQUEST_S, rel=1e-4)
    for name in FittedLine.__slots__:
        assert getattr(found.cost, name) == pytest.approx(getattr(TRUE, name), rel=1e-4)
    assert found.max_error < 1e-6


def test_noise_shows_in_the_error_told() -> None:
    """Times off by 10% either way are missed by about as much, and predicted within it."""
    found = fit(timed(1.1))
    assert 0.03 < found.mean_error < 0.1
    for step in timed():
        fitted_s = found.cost.step_s(step.batch) + found.request_s * step.has_request
        assert fitted_s == pytest.approx(step.seconds, rel=0.15)


def test_no_constant_is_below_zero() -> None:
    """Where times fall with size, the slope is zero and not negative."""
    steps = [
        TimedStep(batch, 1.0 / (1 + batch.prefill_tokens + batch.context_tokens), has_request)
        for batch, has_request in batches()
    ]
    found = fit(steps)
    assert found.request_s >= 0.0
    assert all(getattr(found.cost, name) >= 0.0 for name in FittedLine.__slots__)
    assert found.cost.fixed_s > 0.0
