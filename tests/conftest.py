"""Models and real servers for the tests; servers are started lazily and shared."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from agentkv.server.demo_model import prepare_demo_model
from agentkv.server.process import ServerProcess
from tests.tiny_model import make_tiny_model

# A busy machine, or the other worker, is no fault of the code under test. CI plays the same
# examples each time; new ones are found at home.
settings.register_profile("agentkv", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("agentkv")

# vLLM would bind the worker of every server to one and the same core.
os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}

MAX_SERVERS = 2
"""Real servers alive at once: each takes about 2 GiB and, while it starts, both cores."""

TINY_ARGS = ("--block-size", "32", "--served-model-name", "tiny")
DEMO_ARGS = ("--block-size", "32", "--served-model-name", "demo")


SHARED_SERVERS = (
    *("tiny_continuum_server", "second_continuum_server"),
    *("demo_continuum_server", "tiny_fcfs_server"),
)
FILES_BY_SERVER = {
    **dict.fromkeys(
        (
            *("tests/server/test_continuum_server.py", "tests/server/test_verify_pin.py"),
            *("tests/server/test_api_real.py", "tests/server/test_clients.py"),
            *("tests/server/test_top.py", "tests/server/test_fleet.py"),
            *("tests/server/test_own_policy.py", "tests/server/test_kv_tier.py"),
            "tests/evals/commands/test_record_server.py",
            "tests/evals/simulator/test_calibrate.py",
        ),
        "tiny",
    ),
    **dict.fromkeys(
        ("tests/server/test_bash_agent.py", "tests/server/test_swebench_demo.py"), "demo"
    ),
}
"""Files whose tests share a server, which one process runs; each other file is a unit itself."""


class ByServer(LoadScopeScheduling):
    """Gives the tests of one server to one process, so that each server is started once."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return FILES_BY_SERVER.get(path, path)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByServer:
    return ByServer(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the tests of each shared server together, and all tests of servers to the start."""

    def rank(item: pytest.Item) -> int:
        names = getattr(item, "fixturenames", ())
        is_other = len(SHARED_SERVERS) + (item.get_closest_marker("server") is None)
        return next((i for i, name in enumerate(SHARED_SERVERS) if name in names), is_other)

    items.sort(key=rank)


class ServerPool:
    """Servers by model, policy and flags; the one not asked for longest is stopped first."""

    def __init__(self, log_folder: Path) -> None:
        self._log_folder = log_folder
        self._servers: OrderedDict[tuple[str, ...], ServerProcess] = OrderedDict()

    def get(self, model: Path, *args: str, policy: str = "continuum") -> ServerProcess:
        """A running server, started if there is none like it."""
        key = (str(model), policy, *args)
        server = self._servers.pop(key, None)
        if server is None or not server.is_alive:
            while len(self._servers) >= MAX_SERVERS:
                self._servers.popitem(last=False)[1].stop()
            log_path = self._log_folder / f"{policy}-{abs(hash(key))}.log"
            server = ServerProcess(str(model), policy=policy, args=args, log_path=log_path)
            server.__enter__()
        self._servers[key] = server
        return server

    def stop_all(self) -> None:
        for server in self._servers.values():
            server.stop()


@pytest.fixture(scope="session")
def demo_model_dir() -> Path:
    """SmolLM2-135M-Instruct, prepared once in the user's cache."""
    return prepare_demo_model()


@pytest.fixture(scope="session")
def tiny_model_dir(demo_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 13 million weights with the demo model's tokenizer and chat template."""
    return make_tiny_model(demo_model_dir, tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture(scope="session")
def server_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerPool]:
    pool = ServerPool(tmp_path_factory.mktemp("server-logs"))
    yield pool
    pool.stop_all()


@pytest.fixture
def tiny_continuum_server(server_pool: ServerPool, tiny_model_dir: Path) -> ServerProcess:
    """The tiny model under continuum; served as `tiny`, blocks of 32 tokens."""
    return server_pool.get(tiny_model_dir, *TINY_ARGS)


@pytest.fixture(scope="session")
def record_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the second server writes its event log."""
    return tmp_path_factory.mktemp("record")


@pytest.fixture
def second_continuum_server(
    server_pool: ServerPool, tiny_model_dir: Path, record_dir: Path
) -> ServerProcess:
    """Another one like the tiny model's under continuum, which keeps its event log."""
    record = ("--run-output-dir", str(record_dir))
    return server_pool.get(tiny_model_dir, *TINY_ARGS, *record)


@pytest.fixture
def tiny_fcfs_server(server_pool: ServerPool, tiny_model_dir: Path) -> ServerProcess:
    """The tiny model under stock fcfs."""
    return server_pool.get(tiny_model_dir, *TINY_ARGS, policy="fcfs")


@pytest.fixture
def demo_continuum_server(server_pool: ServerPool, demo_model_dir: Path) -> ServerProcess:
    """The demo model under continuum; served as `demo`, blocks of 32 tokens."""
    return server_pool.get(demo_model_dir, *DEMO_ARGS)


@pytest.fixture
def make_server(tmp_path: Path, tiny_model_dir: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Makes a server of the test's own, not started yet; stopped at the end of the test."""
    made: list[ServerProcess] = []

    def make(*args: str, **options: object) -> ServerProcess:
        server = ServerProcess(
            str(options.pop("model", tiny_model_dir)),
            args=(*TINY_ARGS, *args),
            log_path=tmp_path / f"server-{len(made)}.log",
            **options,
        )
        made.append(server)
        return server

    yield make
    for server in made:
        server.stop()
