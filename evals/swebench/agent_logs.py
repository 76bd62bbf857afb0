"""Keeps mini-swe-agent and litellm off the terminal: what they log goes to the run's folder."""

from __future__ import annotations

import logging
import os
from pathlib import Path

_LOGGERS = ("minisweagent", "litellm_model", "agent", "LiteLLM", "LiteLLM Router", "LiteLLM Proxy")
_QUIET = {
    "MSWEA_SILENT_STARTUP": "1",  # a banner on standard output
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # a download of prices, at import
}


def quiet_imports() -> None:
    """Before the first import of mini-swe-agent; what the caller set in the environment counts."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


def quiet_logs(path: Path) -> None:
    """Write what they log from now on to this file. Imports both."""
    import litellm
    import minisweagent.utils.log  # sets up a handler of its own, which is replaced here

    assert minisweagent.utils.log.logger.name in _LOGGERS
    litellm.suppress_debug_info = True
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    handler.setLevel(logging.INFO)
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        for old in logger.handlers:
            old.close()
        logger.handlers = [handler]
        logger.propagate = False
