"""Fits the cost of a step to times measured on a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .cost import Batch, FittedLine


@dataclass(frozen=True, slots=True)
class TimedStep:
    """Seconds that one step with this batch took, with or without a request's way to the engine."""

    batch: Batch
    seconds: float
    has_request: bool


@dataclass(frozen=True, slots=True)
class Fit:
    """The constants, and by how much they miss: the mean and largest share of a measured time."""

    cost: FittedLine
    request_s: float
    mean_error: float
    max_error: float


def fit(steps: Sequence[TimedStep]) -> Fit:
    """Least squares of the relative errors, no constant below zero."""
    rows = np.array([_row(step) for step in steps])
    seconds = np.array([step.seconds for step in steps])
    constants = _nonnegative(rows / seconds[:, None], np.ones(len(steps)))
    errors = np.abs(rows @ constants / seconds - 1.0)
    request_s, fixed_s, *rest = (float(constant) for constant in constants)
    # A step that costs nothing at all would let a simulated clock stand still.
    cost = FittedLine(max(fixed_s, 1e-6), *rest)
    return Fit(cost, request_s, float(errors.mean()), float(errors.max()))


def _row(step: TimedStep) -> list[float]:
    batch = step.batch
    return [
        float(step.has_request),
        1.0,
        float(batch.prefill_tokens),
        float(batch.prefill_pairs),
        float(batch.num_decodes),
        float(batch.context_tokens),
    ]


def _nonnegative(rows: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares with constants at or above zero: drops the most negative one and solves
    again. Columns are scaled, since pairs run to millions and requests are one."""
    scale = np.abs(rows).max(axis=0)
    scale[scale == 0.0] = 1.0
    active = list(range(rows.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(rows[:, active] / scale[active], wanted, rcond=None)
        if not active or found.min() >= 0.0:
            constants = np.zeros(rows.shape[1])
            constants[active] = found / scale[active]
            return constants
        del active[int(found.argmin())]
