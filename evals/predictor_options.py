"""The command line of `agentkv eval-predictor`, validated."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

from agentkv.durations import KINDS

from .options import seconds, share, whole_number
from .predictor_splits import SPLITS

AT_LEAST = ("auc_1", "auc_2", "auc_5", "auc_10")
AT_MOST = ("median_abs_log_error", "log_loss", "regret_s_per_turn")


def parser(description: str | None) -> argparse.ArgumentParser:
    """Every option with its unit, default and reason."""
    parser = argparse.ArgumentParser(
        prog="agentkv eval-predictor",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("traces", nargs="+", metavar="TRACE", help="JSON lines, gzipped or not")
    add("--kinds", type=_names(KINDS), default=KINDS, metavar="A,B", help=f"of {', '.join(KINDS)}")
    add(
        "--split",
        type=_names((*SPLITS, "all")),
        default=("all",),
        metavar="A,B",
        help=f"of {', '.join(SPLITS)}; default all: those without cold, trace if there are several",
    )
    add(
        "--train-share",
        type=share,
        default=0.7,
        metavar="X",
        help="share of each trace, by time, that is learned (default %(default)s)",
    )
    add(
        "--models",
        default="train",
        metavar="train|shipped|FILE",
        help="trained on each split's own rows (default), those of the package, or a file",
    )
    add("--train", action="store_true", help="write models trained on the --train-share of traces")
    add("--models-out", metavar="FILE", help="with --train: where; default models.json in --out")
    add(
        "--upper-bounds",
        choices=("impute", "skip", "bound"),
        default="bound",
        help="how a command known to have taken at most 3 s is observed: as the median of the "
        "short ones, not at all, or as 3 s (default)",
    )
    add(
        "--session-folds",
        type=whole_number(2),
        default=5,
        metavar="N",
        help="groups of sessions (5)",
    )
    add(
        "--min-family-rows",
        type=whole_number(1),
        default=30,
        metavar="N",
        help="for --split tool (30)",
    )
    add(
        "--reload-s",
        type=seconds,
        default=7.4,
        metavar="S",
        help="what a lost cache costs, queueing and prefill; 7.4 makes a TTL of 2 s the best for "
        "durations of 1 s on average (default %(default)s)",
    )
    add(
        "--context-blocks",
        type=whole_number(1),
        default=875,
        metavar="N",
        help="blocks of one context (default 875: 14,000 tokens)",
    )
    add(
        "--resamples", type=whole_number(0), default=200, metavar="N", help="of the bootstrap (200)"
    )
    add(
        "--require",
        type=_requirements,
        default={},
        metavar="auc_5=0.94,..",
        help=f"exit status 1 unless the default predictor reaches this on the time split; "
        f"at least: {', '.join(AT_LEAST)}; at most: {', '.join(AT_MOST)}",
    )
    add(
        "--require-mode",
        choices=("frozen", "online"),
        default="online",
        help="learning while judged, as servers do (default), or not",
    )
    add("--seed", type=int, default=0, help="of training, groups and the bootstrap")
    add("--out", metavar="DIR", help="write report.json, report.md and report.png here")
    add("--force", action="store_true", help="overwrite what is there")
    add("--json", action="store_true", help="print one JSON document instead")
    return parser


def _names(allowed: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        unknown = [name for name in names if name not in allowed]
        if unknown or not names:
            seen = f"unknown {', '.join(map(repr, unknown))}" if unknown else "nothing named"
            raise argparse.ArgumentTypeError(f"{seen}; choose from {', '.join(allowed)}")
        return names

    return parse


def _requirements(text: str) -> dict[str, float]:
    limits = {}
    for part in filter(None, text.split(",")):
        name, _, number = part.partition("=")
        if name.strip() not in (*AT_LEAST, *AT_MOST):
            raise argparse.ArgumentTypeError(f"{name!r}: not one of {AT_LEAST + AT_MOST}")
        limit = float(number)
        if math.isnan(limit):
            raise argparse.ArgumentTypeError(f"{part}: needs a number")
        limits[name.strip()] = limit
    return limits
