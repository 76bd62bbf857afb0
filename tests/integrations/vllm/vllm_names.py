"""What stands in other places, or not at all, in some of the supported vLLM."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from vllm.utils.argparse_utils import FlexibleArgumentParser

try:
    from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware
except ModuleNotFoundError:  # up to 0.28
    from vllm.entrypoints.serve.utils.server_utils import AuthenticationMiddleware

NO_TIER = "vLLM's CPU tier"


def serve_parser() -> FlexibleArgumentParser:
    """What `vllm serve` itself reads its flags by, those of its HTTP server too."""
    for place in ("common", "launchers", "openai"):  # 0.33, 0.29 to 0.32, older ones
        name = f"vllm.entrypoints.{place}"
        if find_spec(name) is not None and find_spec(f"{name}.cli_args") is not None:
            parser: FlexibleArgumentParser = import_module(f"{name}.cli_args").make_arg_parser(
                FlexibleArgumentParser()
            )
            return parser
    raise AssertionError("vLLM has its parser in another place")


__all__ = ["NO_TIER", "AuthenticationMiddleware", "serve_parser"]
