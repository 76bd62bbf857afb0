"""What stands in other places in some of the supported vLLM."""

from importlib import import_module
from importlib.util import find_spec

from vllm.utils.argparse_utils import FlexibleArgumentParser


def serve_parser() -> FlexibleArgumentParser:
    """What `vllm serve` itself reads its flags by, those of its HTTP server too."""
    for place in ("common", "launchers"):  # 0.33, 0.31 and 0.32
        name = f"vllm.entrypoints.{place}"
        if find_spec(name) is not None and find_spec(f"{name}.cli_args") is not None:
            parser: FlexibleArgumentParser = import_module(f"{name}.cli_args").make_arg_parser(
                FlexibleArgumentParser()
            )
            return parser
    raise AssertionError("vLLM has its parser in another place")
