"""Starts the routers of `integrations/routers/`, each from its recipe with other addresses."""

import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from agentkv.server.process import HTTPProcess, ServerProcess, free_port

RECIPES = Path(__file__).parents[3] / "integrations" / "routers"
SERVERS = ("vllm-1:8000", "vllm-2:8000")
"""The addresses that the recipes have."""
MODEL = "tiny"
API_KEY = f"sk-{secrets.token_hex(32)}"
"""The key of LiteLLM's proxy; servers and the other routers ask for none."""


class Router(HTTPProcess):
    """A router, ready once a server behind it answers `GET /health`."""

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        folder: Path,
        *,
        health_path: str = "/health",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        program = shutil.which(command[0])
        if program is None and "CI" not in os.environ:
            pytest.skip(
                f"{command[0]} is not installed: apt-get install nginx haproxy, make test-fleet"
            )
        assert program is not None, f"{command[0]} is missing"
        super().__init__(
            [program, *command[1:]],
            name=command[0],
            port=port,
            log_path=folder / f"{command[0]}.log",
            environment=environment,
            health_path=health_path,
            ready_timeout_s=120.0,
        )


def _recipe(name: str, port: int, servers: Sequence[ServerProcess]) -> str:
    text = (RECIPES / name).read_text()
    for address, server in zip(SERVERS, servers, strict=True):
        assert address in text
        text = text.replace(address, f"127.0.0.1:{server.port}")
    assert "8080" in text
    return text.replace("8080", str(port))


def nginx(servers: Sequence[ServerProcess], folder: Path, *, without: str = "") -> HTTPProcess:
    """The recipe for `conf.d`, below a main configuration that writes into a folder of the test.

    without: a directive to leave out.
    """
    port = free_port()
    text = _recipe("nginx.conf", port, servers)
    (folder / "agentkv.conf").write_text(text.replace(without, ""))
    paths = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{name}_temp_path {folder}/{name};\n" for name in paths)
    (folder / "nginx.conf").write_text(
        f"daemon off;\nuser root;\npid {folder}/pid;\nerror_log stderr;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}include {folder}/agentkv.conf;\n}}\n"
    )
    return Router(["nginx", "-c", str(folder / "nginx.conf"), "-e", "stderr"], port, folder)


def haproxy(servers: Sequence[ServerProcess], folder: Path) -> HTTPProcess:
    port = free_port()
    (folder / "haproxy.cfg").write_text(_recipe("haproxy.cfg", port, servers))
    return Router(["haproxy", "-db", "-f", str(folder / "haproxy.cfg")], port, folder)


def vllm_router(servers: Sequence[ServerProcess], folder: Path) -> HTTPProcess:
    """The recipe's command; its metrics are on a free port too, and its warnings are not shown."""
    port = free_port()
    text = _recipe("vllm-router.sh", port, servers).replace("\\\n", " ")
    command = next(line for line in text.splitlines() if line.startswith("exec "))
    extra = ["--prometheus-port", str(free_port())]
    return Router([*command.split()[1:], *extra], port, folder)


def litellm(servers: Sequence[ServerProcess], folder: Path) -> HTTPProcess:
    """LiteLLM's proxy in front of the HAProxy of its recipe, which ends with it."""
    behind, port = haproxy(servers, folder), free_port()
    text = (RECIPES / "litellm.yaml").read_text()
    text = text.replace("8080", str(behind.port)).replace("MODEL", MODEL)
    (folder / "litellm.yaml").write_text(text)
    command = ["litellm", "--config", str(folder / "litellm.yaml"), "--port", str(port)]
    return _LiteLLM(behind, command, port, folder)


class _LiteLLM(Router):
    """LiteLLM's proxy in front of another router."""

    def __init__(
        self, behind: HTTPProcess, command: Sequence[str], port: int, folder: Path
    ) -> None:
        environment = {
            "LITELLM_MASTER_KEY": API_KEY,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # no question for prices to the network
        }
        path = "/health/liveliness"
        super().__init__(command, port, folder, health_path=path, environment=environment)
        self._behind = behind

    def start(self) -> None:
        self._behind.__enter__()
        super().start()

    def stop(self) -> None:
        super().stop()
        self._behind.stop()


ROUTERS: dict[str, Callable[[Sequence[ServerProcess], Path], HTTPProcess]] = {
    "nginx": nginx,
    "haproxy": haproxy,
    "vllm-router": vllm_router,
    "litellm": litellm,
}
