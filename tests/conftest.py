"""Models and real servers for the tests; servers are started lazily and shared."""

import json
import logging
import os
import signal
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from agentkv.server.demo_model import MODEL_NAME, prepare_demo_model
from agentkv.server.process import ServerProcess
from tests.forks import ForkedServer
from tests.tiny_model import make_tiny_model

# A busy machine, or the other worker, is no fault of the code under test. The same examples are
# played each time; `make soak` looks for new ones. `make test-fast` plays a few of each.
NUM_EXAMPLES = int(os.environ.get("AGENTKV_TEST_EXAMPLES", "100"))
settings.register_profile("fixed", deadline=None, derandomize=True, max_examples=NUM_EXAMPLES)
settings.register_profile("random", deadline=None, max_examples=1000)
settings.load_profile("fixed")

# A shell starts what it sends to the background with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

# vLLM would bind the worker of every server to one and the same core.
os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}

MAX_SERVERS = 2
"""Real servers alive at once: each takes about 2 GiB and, while it starts, both cores."""

TINY_ARGS = ("--block-size", "32", "--served-model-name", "tiny")
DEMO_ARGS = ("--block-size", "32", "--served-model-name", "demo")
DEMO_POOL_TOKENS = 199 * 32  # one of the 200 blocks is the null block
PRICE_S = 9.0
"""Worth of computing a full pool of the demo model's server again, in seconds of holding."""

GROUPS = {
    "tiny": (
        *("tests/server/test_kv_tier.py", "tests/server/test_soak.py"),
        *("tests/integrations/grafana/test_grafana.py", "tests/server/test_continuum_server.py"),
        *("tests/server/test_api_real.py", "tests/server/test_clients.py"),
        "tests/evals/simulator/test_calibrate.py",
    ),
    # the routes' totals are those of a fresh server
    "routes": ("tests/docs/test_pages.py",),
    # the last one stops the server
    "demo": ("tests/server/test_demo_agents.py", "tests/server/test_live_page.py"),
}
"""Files whose tests share servers, in their order: one process runs a group."""
GROUP_OF = {path: group for group, paths in GROUPS.items() for path in paths}
ORDER_OF = {path: order for order, path in enumerate(GROUP_OF)}
SLOW = (
    *("tests/client/test_fault_matrix.py", "tests/client/test_process.py"),
    *("tests/evals/commands/test_bench.py", "tests/evals/commands/test_plot.py"),
    "tests/evals/swebench/test_report.py",
    "tests/evals/simulator/test_workloads.py",
    "tests/evals/simulator/test_simulate.py",
    *("tests/evals/simulator/test_dram_tier.py", "tests/evals/workload/test_kinds.py"),
    *("tests/evals/traces/test_event_logs.py::test_a_simulated", "tests/studies"),
    *("tests/integrations/test_opentelemetry.py", "tests/integrations/vllm/api/test_page.py"),
    "tests/integrations/vllm/api/test_folding.py::test_any_object_comes_through",
    "tests/integrations/vllm/engine/test_tier_leaks.py",
    "tests/integrations/vllm/engine/test_kv_events.py",
    "tests/integrations/vllm/engine/test_queue.py",
    "tests/integrations/vllm/engine/test_weight_updates.py",
    "tests/integrations/vllm/watch/test_kv_frees.py",
    "tests/integrations/test_runs.py::test_many_runs_at_once",
    "tests/evals/simulator/test_run.py",
    "tests/tool_calls/test_adversarial.py::test_adversarial_replies_take_no_longer",
)
"""What takes seconds a test: all of it is `slow`, so that `make test-fast` stays fast."""
TINY_SERVERS = ("tiny_continuum_server", "scarce_server", "tiny_fcfs_server")


class ByServer(LoadScopeScheduling):
    """Gives the tests of one server to one process, so that each server is started once."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return GROUP_OF.get(path, path)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByServer:
    return ByServer(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow, move tests of servers to the start, and order them.

    By group; then those that ask for the same tiny server together, and those that ask for two
    between those of the first and those of the second.
    """

    def rank(item: pytest.Item) -> tuple[int, ...]:
        path = item.nodeid.partition("::")[0]
        names = getattr(item, "fixturenames", ())
        asked = [order for order, name in enumerate(TINY_SERVERS) if name in names]
        places = (min(asked, default=0), -max(asked, default=0))
        if item.get_closest_marker("server") is None:
            return (len(ORDER_OF) + 1,)
        first_of_group = ORDER_OF[GROUPS[GROUP_OF[path]][0]] if path in GROUP_OF else len(ORDER_OF)
        return (first_of_group, *places, ORDER_OF.get(path, len(ORDER_OF)))

    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
    items.sort(key=rank)


class ServerPool:
    """Servers by model, policy and flags; the one not asked for longest is stopped first."""

    def __init__(self, log_folder: Path) -> None:
        self._log_folder = log_folder
        self._servers: OrderedDict[tuple[str, ...], ServerProcess] = OrderedDict()

    def get(
        self,
        model: Path,
        *args: str,
        policy: str = "continuum",
        environment: Mapping[str, str] | None = None,
    ) -> ServerProcess:
        """A running server, started if there is none like it; one has one environment."""
        key = (str(model), policy, *args)
        server = self._servers.pop(key, None)
        if server is None or not server.is_alive:
            while len(self._servers) >= MAX_SERVERS:
                self._servers.popitem(last=False)[1].stop()
            log_path = self._log_folder / f"{policy}-{abs(hash(key))}.log"
            server = ForkedServer(
                str(model), policy=policy, args=args, log_path=log_path, environment=environment
            )
            server.__enter__()
        self._servers[key] = server
        return server

    def stop_all(self) -> None:
        for server in self._servers.values():
            server.stop()


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """What a command's `main` says of logging ends with its test."""
    loggers = [logging.getLogger(name) for name in ("agentkv", "vllm")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


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


@pytest.fixture
def tiny_fcfs_server(server_pool: ServerPool, tiny_model_dir: Path) -> ServerProcess:
    """The tiny model under stock fcfs."""
    return server_pool.get(tiny_model_dir, *TINY_ARGS, policy="fcfs")


@pytest.fixture(scope="module")
def routes_server(server_pool: ServerPool, tiny_model_dir: Path) -> ServerProcess:
    """The tiny model under agentkv and the demo model's name, as the pages of the docs call it.

    Recomputing costs so much that no pin of a short run expires.
    """
    settings = {"agentkv": {"prefill_reload_s": [0.0, 0.05, 0.0]}}
    args = ("--block-size", "32", "--served-model-name", MODEL_NAME)
    config = ("--additional-config", json.dumps(settings))
    return server_pool.get(tiny_model_dir, *args, *config, policy="agentkv")


@pytest.fixture
def demo_server(server_pool: ServerPool, demo_model_dir: Path) -> ServerProcess:
    """The demo model under agentkv with 199 blocks of 32 tokens, served as `demo`."""
    settings = {"agentkv": {"prefill_reload_s": [0.0, PRICE_S / DEMO_POOL_TOKENS, 0.0]}}
    scarce = ("--num-gpu-blocks-override", "200", "--max-model-len", "6144")
    config = ("--additional-config", json.dumps(settings))
    return server_pool.get(demo_model_dir, *DEMO_ARGS, *scarce, *config, policy="agentkv")


@pytest.fixture
def scarce_server(
    server_pool: ServerPool, tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> ServerProcess:
    """The tiny model under agentkv as a soak has it: little memory, a KV tier, every store in use.

    Its event log is in the folder `record` of the session's.
    """
    # psutil and torch, which vLLM's environment has
    from tests.cpu_tier import tier_flags
    from tests.soak.run import ENVIRONMENT, server_args

    args = server_args(tmp_path_factory.getbasetemp(), {"max_ttl_s": 5.0})
    flags = (*args, *tier_flags(0.1))
    return server_pool.get(tiny_model_dir, *flags, policy="agentkv", environment=ENVIRONMENT)


@pytest.fixture
def make_server(tmp_path: Path, tiny_model_dir: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Makes a server of the test's own, not started yet; stopped at the end of the test."""
    made: list[ServerProcess] = []

    def make(*args: str, **options: object) -> ServerProcess:
        server = ForkedServer(
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
