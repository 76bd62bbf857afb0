"""ContextServe's third layer: boosted trees over features of the command, trained offline.

It learns nothing online. ContextServe uses XGBoost; the trees here come from LightGBM, the better
kept of the two to install (XGBoost's wheel for Linux brings 300 MB of CUDA libraries), and are
evaluated in plain Python. Source for the features and the thresholds: ContextServe.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

from agentkv.commands import CommandAnalysis
from agentkv.commands.features import command_features
from agentkv.durations.log_normal import LogNormal
from agentkv.durations.prediction import SLOW_S, Prediction, Speed
from agentkv.durations.trees import TreeEnsemble
from agentkv.durations.verdicts import TTL_SHARE, prediction

SLOW_OVER = 0.8
FAST_UNDER = 0.2
SPREAD_LN = 0.9
"""The likeliest on the later part of the training data, with trees from the earlier part."""

_LOG_ODDS_LIMIT = 7.0
_STANDARD = NormalDist()


class BoostedEstimator:
    """Slow where the trees say so with a probability over 0.8, fast under 0.2; learns nothing.

    The trees give the probability of more than 5 s only. The distribution around it is log-normal
    with one spread for all commands, SPREAD_LN, and the mean at which that probability holds; a
    fast command's TTL is its 0.9 quantile.
    """

    def __init__(self, trees: TreeEnsemble) -> None:
        self._trees = trees

    def predict(self, command: CommandAnalysis) -> Prediction:
        p_slow = self._p_slow(command)
        distribution = LogNormal(
            math.log(SLOW_S) + SPREAD_LN * _STANDARD.inv_cdf(p_slow), SPREAD_LN
        )
        return prediction(
            _speed(p_slow),
            distribution,
            fast_ttl_s=distribution.quantile_s(TTL_SHARE),
            source="boosted",
            explanation=(
                f"By its features alone (programs' classes, flags, pipes, length) "
                f"{p_slow:.0%} of such commands take over {SLOW_S:g} s."
            ),
        )

    def observe(self, command: CommandAnalysis, duration_s: float, *, censored: bool) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        if state:
            raise ValueError(f"the boosted trees learn nothing online, but got {state!r:.100}")

    def _p_slow(self, command: CommandAnalysis) -> float:
        log_odds = self._trees.raw_score(command_features(command))
        return 1.0 / (1.0 + math.exp(-max(-_LOG_ODDS_LIMIT, min(log_odds, _LOG_ODDS_LIMIT))))


def _speed(p_slow: float) -> Speed:
    if p_slow > SLOW_OVER:
        return "slow"
    return "fast" if p_slow < FAST_UNDER else "uncertain"
