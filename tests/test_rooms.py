"""What the import contracts of pyproject.toml cannot check: vLLM's private names, heavy imports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def imported_names(path: Path) -> set[str]:
    """Absolute names that a module imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def uses(room: str, *prefixes: str) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / room).rglob("*.py"))
        for name in sorted(imported_names(path))
        if any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)
    ]


def test_private_scheduler_names_stay_in_one_file() -> None:
    """Only the engine's seam imports vLLM's engine and scheduler internals to change them."""
    names = ("vllm.v1.engine.core", "vllm.v1.core.kv_cache_manager", "vllm.v1.core.block_pool")
    found = {use.partition(":")[0] for use in uses("integrations", *names)}
    assert found == {"integrations/vllm/engine/seam.py"}


@pytest.mark.parametrize(
    "module",
    [
        *("agentkv", "agentkv.cli", "agentkv.durations.ttl", "agentkv.server.process"),
        *("agentkv.policies", "agentkv.watchers"),
        "agentkv.integrations.vllm.retention.manager",
        "agentkv.integrations.vllm.watch.job_view",
    ],
)
def test_importing_pulls_in_nothing_heavy(module: str) -> None:
    """Importing the client loads neither openai nor vllm nor torch in a fresh interpreter."""
    code = (
        f"import sys, {module}\n"
        "print(sorted({'openai', 'vllm', 'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"
