"""The compose file of a fleet fits the recipe of its router, and names files that exist."""

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "integrations" / "containers"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVERS = ("vllm-1:8000", "vllm-2:8000")


@pytest.mark.parametrize(("name", "number"), [("containers", 5), ("grafana", 4)])
def test_the_files_that_a_compose_file_mounts_exist(name: str, number: int) -> None:
    """Docker would make an empty folder of each missing file."""
    folder = FOLDER.parent / name
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"].values()
    mounted = [volume.partition(":")[0] for each in services for volume in each["volumes"]]
    files = [path for path in mounted if path.startswith(".")]
    assert len(files) == number
    assert [path for path in files if not (folder / path).exists()] == []


def test_router_and_prometheus_know_both_servers() -> None:
    """The names of the compose file's servers stand in HAProxy's and Prometheus's files."""
    services = [f"{name}:8000" for name in COMPOSE["services"] if name.startswith("vllm")]
    assert services == [*SERVERS]
    recipe = (FOLDER / "../routers/haproxy.cfg").read_text()
    assert all(f" {server}\n" in recipe for server in SERVERS)
    (scrape,) = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    assert scrape["static_configs"] == [{"targets": [*SERVERS]}]


def test_haproxy_accepts_its_recipe(tmp_path: Path) -> None:
    """HAProxy's own check finds no fault and no warning in the recipe."""
    program = shutil.which("haproxy")
    if program is None:
        pytest.skip("haproxy is not installed")
    text = (FOLDER / "../routers/haproxy.cfg").read_text()
    for server in SERVERS:
        text = text.replace(server, "127.0.0.1:8000")
    (path := tmp_path / "haproxy.cfg").write_text(text)
    done = subprocess.run([program, "-c", "-f", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr


@pytest.mark.fleet
def test_the_containerfile_puts_our_policies_into_a_vllm(tmp_path: Path) -> None:
    """Its RUN lines, run on the files that it copies, install a plugin which vLLM finds.

    An environment that has vLLM stands for vLLM's image, and a folder for the image's root.
    """
    venv.create(tmp_path / "image", with_pip=True)
    (packages,) = (tmp_path / "image" / "lib").glob("python3*/site-packages")
    (packages / "vllm.pth").write_text(next(path for path in sys.path if "site-packages" in path))
    path = f"{tmp_path / 'image' / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": ""}
    (source := tmp_path / "src").mkdir()
    for line in (FOLDER / "Containerfile").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if line.startswith("COPY --from=wheel"):
            shutil.copytree(tmp_path / words[2].strip("/"), tmp_path / words[3].strip("/"))
        elif line.startswith("COPY "):
            copied = [FOLDER.parents[1] / name for name in words[1:-1]]
            target = source if words[-1] == "./" else source / words[-1]
            subprocess.run(["cp", "-r", *copied, target], check=True)
        elif line.startswith("RUN "):
            command = re.sub(r"(?<= )/(?=\w)", f"{tmp_path}/", line.removeprefix("RUN "))
            subprocess.run(command, shell=True, check=True, env=environment, cwd=source)
    script = (
        "import agentkv, vllm.plugins; vllm.plugins.load_general_plugins();"
        "from vllm.engine.arg_utils import EngineArgs; from vllm.utils.argparse_utils import"
        " FlexibleArgumentParser as Parser; print(agentkv.__file__,"
        "EngineArgs.add_cli_args(Parser()).parse_args(['--scheduling-policy', 'agentkv']))"
    )
    done = subprocess.run(
        ["python3", "-c", script], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert f"{packages}/agentkv/__init__.py" in done.stdout
    assert "scheduling_policy='agentkv'" in done.stdout
