"""A made-up project's commands and a simple predictor, for the tests of eval-predictor."""

from __future__ import annotations

import json
import math
import random
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentkv.durations import Prediction
from agentkv.evals.predictor_replay import EDGES_S, Forecast
from agentkv.evals.workload.traces import TracedCommand

TYPICAL_S = {
    "ls -la": 0.05,
    "grep -rn TODO src": 0.3,
    "git status": 0.1,
    "go vet ./...": 3.0,
    "go test ./...": 12.0,
    "npm install": 30.0,
}


def synthetic_lines(num: int = 120, num_sessions: int = 8, seed: int = 0) -> list[dict[str, Any]]:
    """Lines of a trace: six commands around their typical durations, a few known by a bound."""
    chance = random.Random(seed)
    lines: list[dict[str, Any]] = []
    for number in range(num):
        command = chance.choice(list(TYPICAL_S))
        line = {
            "session": f"s{number * num_sessions // num}",
            "order": 1000.0 + number,
            "command": command,
            "duration_s": round(TYPICAL_S[command] * math.exp(chance.gauss(0.0, 0.4)), 3),
            "censored": False,
            "is_error": False,
            "timeout_s": None,
        }
        if command == "git status" and chance.random() < 0.3:
            line |= {"duration_s": None, "censored": True}
        if command == "npm install" and chance.random() < 0.2:
            line |= {"duration_s": 20.0, "is_error": True, "timeout_s": 20.0}
        lines.append(line)
    return lines


def write_lines(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


def row(
    duration_s: float = 1.0, command: str = "ls", *, session: str = "s0", **fields: Any
) -> TracedCommand:
    """A traced command with the fields that matter to a test."""
    values = {"trace": "t", "order": 0.0, "bound": "exact"} | fields
    return TracedCommand(command=command, duration_s=duration_s, session=session, **values)


def forecast(of: TracedCommand, p_over_5_s: float = 0.5, **fields: Any) -> Forecast:
    """A forecast with P(over 5 s) given and the other edges evenly around it."""
    index = EDGES_S.index(5.0)
    p_over = tuple(
        1.0 - (1.0 - p_over_5_s) * (place + 1) / (index + 1)
        if place <= index
        else p_over_5_s * (len(EDGES_S) - place) / (len(EDGES_S) - index)
        for place in range(len(EDGES_S))
    )
    values = {
        "speed": "uncertain",
        "source": "test",
        "p50_s": 1.0,
        "ttl_s": 2.0,
        "p_over": p_over,
        "share_below": 0.5,
        "continuum_ttl_s": 2.0,
        "predict_us": 1.0,
    }
    return Forecast(row=of, **(values | fields))


@dataclass(frozen=True, slots=True)
class LogNormal:
    """ln(duration) is normal around `mean_log` with deviation `spread`."""

    mean_log: float
    spread: float = 1.0

    def p_over(self, seconds: float) -> float:
        place = (math.log(max(seconds, 1e-9)) - self.mean_log) / self.spread
        return 0.5 * math.erfc(place / math.sqrt(2.0))

    def quantile_s(self, share: float) -> float:
        return math.exp(statistics.NormalDist(self.mean_log, self.spread).inv_cdf(share))


@dataclass
class MeanByCommand:
    """A predictor that knows each command's mean log duration, and writes down what it is told."""

    observed: list[tuple[str, float, bool]] = field(default_factory=list)
    predicted: list[tuple[str, int]] = field(default_factory=list)

    def observe(self, command: str, duration_s: float, *, censored: bool = False) -> None:
        self.observed.append((command, duration_s, censored))

    def predict(self, command: str) -> Prediction:
        self.predicted.append((command, len(self.observed)))
        logs = [math.log(max(s, 0.01)) for c, s, _ in self.observed if c == command]
        distribution = LogNormal(statistics.fmean(logs) if logs else 0.0)
        p50_s, p90_s = distribution.quantile_s(0.5), distribution.quantile_s(0.9)
        speed = "fast" if p50_s < 0.5 else "slow" if p50_s > 8.0 else "uncertain"
        ttl_s = 0.0 if speed == "slow" else p90_s
        return Prediction(speed, p50_s, p90_s, ttl_s, "mean", "the mean", distribution)
