"""Imports what the processes of a vLLM server import, once for all that are forked from this one.

`tests.forks` names it to the fork server; nothing else imports it.
"""

import importlib
import importlib.metadata
import os

import setproctitle

from agentkv.integrations.vllm.serve import CPU_DISTRIBUTION, installed_vllm, name_cpu_build
from tests.forks import QUIET

MODULES = (
    *("vllm.entrypoints.cli.main", "vllm.entrypoints.cli.serve"),
    *("vllm.entrypoints.launchers.api_server.entry", "vllm.v1.engine.core"),
    *("vllm.v1.executor.multiproc_executor", "vllm.v1.worker.cpu_worker"),
    *("vllm.model_executor.models.llama", "agentkv.integrations.vllm.plugin"),
    "agentkv.evals.simulator.simulate",
)

os.environ |= QUIET  # read while these modules are imported
version = importlib.metadata.version
if installed_vllm() == CPU_DISTRIBUTION:
    name_cpu_build()
for module in MODULES:
    importlib.import_module(module)
setproctitle.getproctitle()  # finds its place now: not once the environment is another one
importlib.metadata.version = version  # a server finds out for itself which build it has
assert os.listdir("/proc/self/task") == [str(os.getpid())], "a thread runs: forks are not sound"
