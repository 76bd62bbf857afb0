"""The default predictor: a first guess from the command's text, corrected by every run like it.

Parts of a command (a program, an option, a target) each have a weight, which the guess is corrected
by. Three levels of likeness, from the same program to the very same text, each keep a cell: weight,
mean and spread of ln(seconds) of its runs. A prediction is the Normal-Inverse-Gamma posterior of
one level after the other, each the prior of the next; recent runs count more. Source: Murphy,
"Conjugate Bayesian analysis of the Gaussian distribution" (2007), section 6, and, for the weights,
assumed-density filtering with the covariance kept diagonal; levels and constants are ours.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from agentkv.commands import CommandAnalysis, Program
from agentkv.commands.programs import TABLES, module_of
from agentkv.durations.prediction import (
    ROUND_TRIP_S,
    LogNormal,
    Prediction,
    prediction,
    summary,
    verdict,
)
from agentkv.durations.typical import FirstGuess, first_guess, mode_of

PRIOR_WEIGHT, PRIOR_SHAPE = 1.5, 1.5
"""Runs that a level's prior counts for: in the mean, and twice in the spread."""
DECAY = 0.75
"""Each run of a level counts this much less than the next: an effective window of 5."""
SPREAD_LN, WAIT_SPREAD_LN, RUN_SPREAD_LN = 0.7, 0.2, 0.25
"""Standard deviations of ln(seconds): of a first guess, a wait in the text, a single run."""
PART_VARIANCE, NOISE_VARIANCE, DRIFT_VARIANCE = 0.1, 0.9, 0.002
"""Variances: of an unseen part's weight, of alike runs, and what each run adds to it."""
MAX_SURPRISE = 2.0
"""Standard deviations at which a run's surprise is capped: one that hung must not teach much."""
MAX_CELLS, MAX_WEIGHTS, MAX_READ = 4096, 8192, 256
"""Cells, weights and readings of texts (at most 2 kB each) kept; the least recently seen go."""
SURE_FAST, SURE_SLOW = 0.75, 0.65
"""Probabilities above which a command is called fast or slow; ours are calibrated."""
TTL_SHARE, MAX_FAST_TTL_S = 0.95, 10.0
LEVEL_NAMES = ("the same program", "the same words", "this command")
_SHORTEST_S, _LONGEST_S = 0.01, 3600.0
_FILTERS = frozenset(TABLES["words"]["filters"].split())
"""They shape another program's output; their own time hardly counts."""
_NUMBER = re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{7,40}\b|\d+")
_MAX_KEY_CHARS, _MAX_PARTS = 400, 20


class _Reading(NamedTuple):
    """What is read off a command's text."""

    guess: FirstGuess
    levels: tuple[str, ...]
    """Digests of the keys of its cells, from the same program to this very text."""
    parts: tuple[str, ...]
    """Digests of its parts."""


@dataclass(slots=True)
class Cell:
    """Runs of one level: their weight, mean and sum of squared deviations of ln(seconds)."""

    weight: float = 0.0
    mean: float = 0.0
    squares: float = 0.0
    num_runs: int = 0

    def add(self, ln_s: float) -> None:
        self.weight = DECAY * self.weight + 1.0
        step = ln_s - self.mean
        self.mean += step / self.weight
        self.squares = DECAY * self.squares + step * (ln_s - self.mean)
        self.num_runs += 1


class CellEstimator:
    """Predicts from a first guess, weights of parts and three levels of runs."""

    def __init__(self) -> None:
        self._cells: OrderedDict[str, Cell] = OrderedDict()
        self._weights: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Mean and variance of what each part adds to ln(seconds)."""

    def predict(self, command: CommandAnalysis) -> Prediction:
        reading = _read(command)
        guess = reading.guess
        distribution, seen = self._posterior(reading)
        speed = verdict(distribution, SURE_FAST, SURE_SLOW)
        # nothing unknown may make it fast, nor be what makes it slow
        if not seen and guess.unknown_share > (0.0 if speed == "fast" else 0.5):
            speed = "uncertain"
        return prediction(
            speed,
            distribution,
            min(distribution.quantile_s(TTL_SHARE) + ROUND_TRIP_S, MAX_FAST_TTL_S),
            "runs" if seen else "prior",
            _explanation(guess, seen, distribution),
        )

    def observe(self, command: CommandAnalysis, duration_s: float, *, censored: bool) -> None:
        reading = _read(command)
        ln_s = math.log(min(max(duration_s, _SHORTEST_S), _LONGEST_S))
        if censored:
            ln_s, _ = self._posterior(reading)[0].beyond(math.exp(ln_s))
        self._learn_parts(reading.parts, ln_s - math.log(reading.guess.seconds))
        for level in reading.levels:
            cell = self._cells.pop(level, None) or Cell()
            cell.add(ln_s)
            self._cells[level] = cell
        while len(self._cells) > MAX_CELLS:
            self._cells.popitem(last=False)

    def _posterior(self, reading: _Reading) -> tuple[LogNormal, list[str]]:
        """Return the distribution, and the number of runs of each level that has any."""
        guess = reading.guess
        mean, variance = math.log(guess.seconds), WAIT_SPREAD_LN**2
        if not guess.is_wait:
            added, doubt = self._added_by(reading.parts)
            mean, variance = mean + added, SPREAD_LN**2 + min(doubt, 1.0)
        seen = []
        for place, level in enumerate(reading.levels):
            cell = self._cells.get(level)
            if cell is not None:
                runs = "1 run" if cell.num_runs == 1 else f"{cell.num_runs} runs"
                seen.append(f"{runs} of {LEVEL_NAMES[place]}")
                share = cell.weight / (cell.weight + PRIOR_WEIGHT)
                distance = cell.mean - mean
                squares = cell.squares + cell.weight * RUN_SPREAD_LN**2
                squares += PRIOR_WEIGHT * share * distance**2
                mean += share * distance
                variance = (2 * PRIOR_SHAPE * variance + squares) / (2 * PRIOR_SHAPE + cell.weight)
        return LogNormal(mean, math.sqrt(variance), guess.limit_s), seen

    def _added_by(self, parts: tuple[str, ...]) -> tuple[float, float]:
        """Return mean and variance of what these parts together add to ln(seconds)."""
        weights = [self._weights.get(part, (0.0, PART_VARIANCE)) for part in parts]
        means, variances = zip(*weights, strict=True)
        return sum(means), sum(variances)

    def _learn_parts(self, parts: tuple[str, ...], added: float) -> None:
        mean, variance = self._added_by(parts)
        total = variance + NOISE_VARIANCE
        bound = MAX_SURPRISE * math.sqrt(total)
        step = min(max(added - mean, -bound), bound) / total
        for part in parts:
            weight, own = self._weights.pop(part, (0.0, PART_VARIANCE))
            kept = own * (1.0 - own / total) + DRIFT_VARIANCE
            self._weights[part] = weight + own * step, min(kept, PART_VARIANCE)
        while len(self._weights) > MAX_WEIGHTS:
            self._weights.popitem(last=False)

    def state(self) -> dict[str, Any]:
        cells = [
            [key, cell.num_runs, round(cell.weight, 4), round(cell.mean, 4), round(cell.squares, 4)]
            for key, cell in self._cells.items()
        ]
        weights = [[part, round(m, 4), round(v, 5)] for part, (m, v) in self._weights.items()]
        return {"cells": cells, "weights": weights}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned. Raises KeyError, TypeError or ValueError otherwise."""
        for key, num_runs, weight, mean, squares in state["cells"][-MAX_CELLS:]:
            if not (0 <= weight <= 6 and abs(mean) < 50 and 0 <= squares < 1e6):
                raise ValueError(f"not a cell: {key!r:.80}")
            self._cells[str(key)] = Cell(weight, mean, squares, int(num_runs))
        for part, mean, variance in state["weights"][-MAX_WEIGHTS:]:
            if not (abs(mean) < 50 and 0 <= variance <= 10):
                raise ValueError(f"not a weight: {part!r:.80}")
            self._weights[str(part)] = mean, variance


@lru_cache(maxsize=MAX_READ)
def _read(command: CommandAnalysis) -> _Reading:
    guess = first_guess(command)
    levels, parts = keys_of(command, guess.main)
    return _Reading(guess, tuple(map(_digest, levels)), tuple(map(_digest, parts)))


def keys_of(command: CommandAnalysis, main: Program | None) -> tuple[list[str], list[str]]:
    """Return the keys of a command's levels, and its parts."""
    text = f"text {command.text}"
    if main is None:
        return ["", "", text], ["*"]
    core = [p for p in command.programs if p.name not in _FILTERS and not p.is_background] or [main]
    parts, shapes = ["*"], []
    for program in map(module_of, core):  # `python -m pip install x` is a `pip install x`
        given = program.argv[3:] if program.argv[1:2] == ("-C",) else program.argv[1:]
        words = [word.rstrip("/") if len(word) < 60 and " " not in word else "*" for word in given]
        shape = " ".join((program.name, *words))
        shapes.append(shape if program.name == "sleep" else _NUMBER.sub("0", shape))
        kind = _kind_of(program)
        named = [_NUMBER.sub("0", word) if word[:1] == "-" else word for word in words]
        parts += [f"{kind} {program.key}", f"{kind} {program.name} *"]
        parts += [f"{kind} {program.key} {word}" for word in named]
    main = module_of(main)
    name = " ".join(main.argv) if main.name == "sleep" else main.key
    levels = [f"{_kind_of(main)} {name}", f"{_kind_of(main)}; {'; '.join(shapes)}", text]
    return [level[:_MAX_KEY_CHARS] for level in levels], list(dict.fromkeys(parts))[:_MAX_PARTS]


def _kind_of(program: Program) -> str:
    """Say which runs teach something of a program's run: a loop and a single run do not."""
    return "loop" if program.is_repeated else mode_of(program)


def _digest(key: str) -> str:
    """Return 8 bytes of a digest, so that a saved state holds no command, nor a secret in one."""
    return hashlib.blake2b(key.encode(errors="replace"), digest_size=8).hexdigest()


def _explanation(guess: FirstGuess, seen: list[str], distribution: LogNormal) -> str:
    name = "nothing that lasts" if guess.main is None else f"`{guess.main.key}`"
    usual = f"{name}: usually about {guess.seconds:.2g} s"
    if guess.unknown_share > 0.5:
        usual = f"{name}: not known beforehand how long it takes"
    elif guess.unknown_share:
        usual += ", but not all of it is known beforehand"
    return f"{usual}; {', '.join(seen) or 'no run like it seen yet'}: {summary(distribution)}"
