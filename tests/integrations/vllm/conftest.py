"""Builds engines around vLLM's real scheduler."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentkv.evals.simulator.vllm_scheduler import write_model_config
from agentkv.integrations.vllm.engine import seam
from tests.integrations.vllm.harness import Engine


@pytest.fixture(scope="session")
def model_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the config of a model that vLLM accepts; it has no weights."""
    return write_model_config(tmp_path_factory.mktemp("model"))


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def make_engine(request: pytest.FixtureRequest) -> Callable[..., Engine]:
    """Makes engines of the sync and of the async scheduler class."""

    def make(**options: object) -> Engine:
        return Engine(is_async=request.param, **options)

    return make


@pytest.fixture(autouse=True)
def no_hook_failed(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test in which a guarded hook raised: it only logs, and goes on as stock does."""
    yield
    assert not [
        record.getMessage()
        for record in caplog.records
        if record.exc_info and record.name == seam.logger.name
    ]
