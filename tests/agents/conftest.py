"""mini-swe-agent and litellm as they behave offline: no banner, no price list, no long waits."""

import asyncio
import os
from collections.abc import Iterator

import pytest

import agentkv
from agentkv.client.server import forget_servers

# Read when the two are imported, which the test modules do after this.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["MSWEA_SILENT_STARTUP"] = "1"
os.environ["MSWEA_COST_TRACKING"] = "ignore_errors"
os.environ["MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT"] = "1"


@pytest.fixture
def clean_slate() -> Iterator[None]:
    """No server is known, nothing is instrumented, and no feedback is on its way."""
    forget_servers()
    # litellm's bookkeeping would else make the main thread a loop that nobody closes
    asyncio.set_event_loop(None)
    yield
    agentkv.uninstrument()
    assert agentkv.flush(timeout_s=20)
