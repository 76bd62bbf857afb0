"""A linear fit whose coefficients are never negative."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def fit_above_zero(columns: NDArray[np.float64], values: NDArray[np.float64]) -> list[float]:
    """Coefficients, one per column, of the least squares fit; the most negative is left out
    until none is."""
    fitted = [0.0] * columns.shape[1]
    active = list(range(columns.shape[1]))
    while active:
        coefficients, *_ = np.linalg.lstsq(columns[:, active], values, rcond=None)
        if coefficients.min() >= 0:
            for column, coefficient in zip(active, coefficients, strict=True):
                fitted[column] = float(coefficient)
            break
        del active[int(coefficients.argmin())]
    return fitted
