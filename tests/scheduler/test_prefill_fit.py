"""PrefillReload is learned from the server's own prefills."""

from __future__ import annotations

import random

import pytest

from agentkv.integrations.vllm.prefill_fit import PrefillFit
from agentkv.ttl import PrefillReload


def test_the_fit_finds_the_curve_behind_noisy_prefills() -> None:
    """100 prefills with hits and 5% noise: seconds at 4,000 tokens within 10%."""
    truth = PrefillReload(0.01, 1e-4, 2e-8)
    chance = random.Random(3)
    fit = PrefillFit()
    for _ in range(100):
        total = chance.randrange(100, 8000)
        hit = chance.randrange(0, total)
        elapsed_s = truth.seconds(total) - truth.seconds(hit) + truth.constant_s
        fit.observe(hit, total, elapsed_s * chance.uniform(0.95, 1.05))
    assert fit.reload.seconds(4000) == pytest.approx(truth.seconds(4000), rel=0.1)


def test_the_curve_never_falls() -> None:
    """Prefills that seem to get faster with length still give no negative coefficient."""
    fit = PrefillFit()
    for total in range(100, 5000, 100):
        fit.observe(0, total, 1.0 - total / 10_000)
    reload = fit.reload
    assert min(reload.constant_s, reload.linear_s, reload.quadratic_s) >= 0


def test_given_coefficients_are_kept() -> None:
    """Settings win over what is measured."""
    given = PrefillReload(1.0, 2.0, 3.0)
    fit = PrefillFit(given)
    for _ in range(100):
        fit.observe(0, 1000, 0.5)
    assert fit.reload == given


def test_few_prefills_give_a_rate() -> None:
    """Before the quadratic is trusted: seconds per token."""
    fit = PrefillFit()
    fit.observe(0, 1000, 2.0)
    assert fit.reload.seconds(500) == pytest.approx(1.0)
