"""Calls `agentkv.instrument()` in a program that `agentkv run` started.

Python imports it at its start, also in Python tools that the program starts. So it does next to
nothing until one of the packages named in AGENTKV_WATCH is imported, and imports agentkv then.
With AGENTKV_JOB the process is one job, and its child processes are none.
Another `sitecustomize` further on the path runs as it would have without this one.
"""

import atexit
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from types import ModuleType


class _FirstImport:
    """Watches for the first import of a framework."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self._names:
            sys.meta_path.remove(self)
            _instrument()
        return None


def _instrument(*, job_id: str | None = None) -> None:
    """Have agentkv follow this process, and with a job's id, perhaps empty, make it that job."""
    try:
        import agentkv
        from agentkv.client.delivery import sender

        agentkv.instrument()
        if job_id is not None:
            session = agentkv.session(job_id=job_id or None)
            session.__enter__()

            def end() -> None:
                session.__exit__()
                sender.flush_at_exit()

            atexit.register(end)
    except Exception as error:
        print(
            f"agentkv run: {sys.executable} cannot use agentkv ({error}): its agents are not seen, "
            "the program is not affected. Is agentkv-serving installed there?",
            file=sys.stderr,
        )


def _run_the_next() -> None:
    """Run the `sitecustomize` that this one hides, if there is one."""
    here = os.path.dirname(os.path.realpath(__file__))
    elsewhere = [folder for folder in sys.path if os.path.realpath(folder) != here]
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


if (job_id := os.environ.pop("AGENTKV_JOB", None)) is not None:
    _instrument(job_id=job_id)
elif names := os.environ.get("AGENTKV_WATCH"):
    sys.meta_path.insert(0, _FirstImport(names.split(",")))
_run_the_next()
