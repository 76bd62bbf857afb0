"""`agentkv predict`: how long will this command run, what follows for its cache, and why?

Several commands are predicted one by one; `-` reads them from standard input, one a line. Nothing
is run and nothing is learned.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentkv.command_line import DONE, add_json, command_parser
from agentkv.commands import analyze_command
from agentkv.durations import DurationPredictor, Prediction, predictor_names
from agentkv.errors import InputError

THRESHOLDS_S = (1, 2, 5, 10)
_MAX_SHOWN_CHARS = 100


def main(argv: Sequence[str] | None = None) -> int:
    """0: predicted. Raises InputError without a command, predictor or state that can be used."""
    options = _parser().parse_args(argv)
    commands = _commands(options.commands)
    predictor = DurationPredictor(options.kind, seed=options.seed)
    if not any(command.strip() for command in commands):
        raise InputError("no command: give the text that bash would run, or - for standard input")
    if options.state is not None:
        path = Path(options.state)
        path.open().close()  # OSError for a file that is not there
        logging.getLogger("agentkv").setLevel(logging.ERROR)  # what follows says it in one line
        if not predictor.load(path):
            raise InputError(
                f"{path}: no saved state of the predictor {options.kind!r}: give what `agentkv "
                "train-predictor` or DurationPredictor.save wrote"
            )
    rows = [_as_dict(command, predictor.predict(command)) for command in commands]
    if options.json:
        document = {"kind": options.kind, "num_observed": predictor.num_observed}
        print(json.dumps({**document, "predictions": rows}))
    else:
        print("\n\n".join(map(_described, rows)))
    return DONE


def _as_dict(command: str, prediction: Prediction) -> dict[str, Any]:
    """Return one prediction as JSON data."""
    return {
        "command": command,
        "speed": prediction.speed,
        "p50_s": prediction.p50_s,
        "p90_s": prediction.p90_s,
        "ttl_s": prediction.ttl_s,
        "p_over": {str(t): prediction.p_over(t) for t in THRESHOLDS_S},
        "source": prediction.source,
        "explanation": prediction.explanation,
        "programs": [program.key for program in analyze_command(command).programs],
    }


def _described(row: dict[str, Any]) -> str:
    """Return one prediction as a few lines of text."""
    consequences = {
        "fast": f"its cache is pinned for {row['ttl_s']:.3g} s",
        "slow": "its cache is freed at once (TTL 0 s)",
        "uncertain": f"Continuum's TTL decides ({row['ttl_s']:.3g} s by this predictor)",
    }
    return "\n".join(
        [
            _one_line(row["command"]),
            f"  {row['speed']:9} {consequences[row['speed']]}",
            f"  lasts     p50 {row['p50_s']:.3g} s, p90 {row['p90_s']:.3g} s",
            "  P(over)   " + "   ".join(f"{t} s: {p:.2f}" for t, p in row["p_over"].items()),
            f"  programs  {', '.join(row['programs']) or 'none found'}",
            f"  source    {row['source']}: {row['explanation']}",
        ]
    )


def _commands(words: Sequence[str]) -> Sequence[str]:
    commands: list[str] = []
    for word in words:
        if word == "-":
            lines = sys.stdin.buffer.read().decode("utf-8", "replace").splitlines()
            commands.extend(line for line in lines if line.strip())
        else:
            # bytes outside UTF-8 come as surrogates, which cannot be printed
            commands.append(word.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
    return commands


def _one_line(command: str) -> str:
    lines = command.strip().splitlines() or ["(empty command)"]
    shown = lines[0][:_MAX_SHOWN_CHARS]
    return shown if shown == command.strip() or not command.strip() else f"{shown} ..."


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("predict", __doc__)
    add = parser.add_argument
    add("commands", nargs="+", metavar="COMMAND", help="bash text, or - for stdin")
    kinds = f"{', '.join(predictor_names())}, FILE.py:CLASS or MODULE:CLASS (default %(default)s)"
    add("--kind", default="default", metavar="NAME", help=f"which predictor: {kinds}")
    add("--state", metavar="FILE", help="what train-predictor or DurationPredictor.save wrote")
    add("--seed", type=int, default=0, help="of the predictor; none of them draws at random today")
    add_json(parser)
    return parser
