"""Grades a patch without containers: the instance's own eval script in bubblewrap.

Follows what the official harness does in a container, step for step, on a fresh clone of the
instance's repository; the log is graded by the harness's own code. The Python that runs the tests
is the one that runs this, not the image's, so the mode is for instances made for that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from agentkv.agents.sandbox import CommandResult, run_bounded, sandboxed_argv

from .errors import SwebenchError
from .eval_results import Verdict
from .grading import graded, test_spec, verdict, write_report
from .instances import Instance
from .worktree import Worktree, fresh_worktree

TESTBED = "/testbed"
"""Where images of SWE-bench have the repository, and eval scripts look for it."""
_RESET = "git checkout -- . ; git clean -fd"
_APPLY_LIMIT_S = 120.0
_LOG_LIMIT_BYTES = 64 * 1024 * 1024
_MAX_REASON_CHARS = 300
_PATCH, _SCRIPT = "patch.diff", "eval.sh"
"""In the sandbox's /tmp, which is where the harness has the patch too."""


@dataclass(frozen=True, slots=True)
class LocalHarness:
    """`bubblewrap` is the bwrap to use, `time_limit_s` what the eval script of an instance gets.

    find_repository: an instance's git repository; raises SwebenchError if there is none.
    """

    bubblewrap: str
    find_repository: Callable[[Instance], Path]
    log_folder: Path
    time_limit_s: float
    _stopped: Event = field(default_factory=Event)

    def grade(
        self,
        instances: Sequence[Instance],
        predictions: Mapping[str, Mapping[str, str]],
        *,
        workers: int,
        on_verdict: Callable[[str, Verdict], None],
    ) -> None:
        """Grade these instances' patches; `on_verdict` is called as each is known, in this thread.

        Tests that run end with an exception in this thread, such as Ctrl-C's. Raises OSError where
        nothing can be written.
        """
        with ThreadPoolExecutor(workers) as pool:
            graded = {
                pool.submit(self.verdict, one, predictions[one.instance_id]): one.instance_id
                for one in instances
            }
            try:
                for done in as_completed(graded):
                    on_verdict(graded[done], done.result())
            except BaseException:
                self._stopped.set()
                pool.shutdown(cancel_futures=True)
                raise

    def verdict(self, instance: Instance, prediction: Mapping[str, str]) -> Verdict:
        """Apply the patch, run the eval script, grade the log; all of it stays in `log_folder`.

        Takes as long as the tests; safe to call from several threads. Raises OSError where
        nothing can be written.
        """
        logs = self.log_folder / instance.instance_id
        logs.mkdir(parents=True, exist_ok=True)
        try:
            repository = self.find_repository(instance)
            with fresh_worktree(instance, repository, self.log_folder / "worktrees") as worktree:
                return self._graded(instance, prediction, worktree, logs)
        except SwebenchError as error:
            return Verdict("error", str(error))
        except UnicodeEncodeError as error:  # half of a character, which JSON can hold
            return Verdict("error", f"the patch or the eval script is no whole text: {error}")

    def _graded(
        self, instance: Instance, prediction: Mapping[str, str], worktree: Worktree, logs: Path
    ) -> Verdict:
        # both files before anything of the model's runs, and could put a link in their place
        for name, text in (
            (_PATCH, prediction["model_patch"]),
            (_SCRIPT, test_spec(instance).eval_script),
        ):
            for folder in (worktree.scratch, logs):
                (folder / name).write_text(text, encoding="utf-8", newline="")
        if (refusal := self._apply(worktree)) is not None:
            return Verdict("error", f"the patch does not apply: {_shortened(refusal)}")
        result = self._run(worktree, f"/bin/bash /tmp/{_SCRIPT}", self.time_limit_s)
        log_path = logs / "test_output.txt"
        log_path.write_text(result.output, encoding="utf-8", newline="")
        if result.timed_out:
            return Verdict("error", f"the tests ran longer than {self.time_limit_s:g} s")
        report = graded(instance, prediction, log_path)
        write_report(logs / "report.json", report)
        return verdict(report)

    def _apply(self, worktree: Worktree) -> str | None:
        """Try the harness's commands in its order; None if one worked, else what the last said.

        Source: swebench 5.0.2, harness/run_evaluation.py, run_instance.
        """
        from swebench.harness.run_evaluation import GIT_APPLY_CMDS

        said = ""
        for attempt, command in enumerate(GIT_APPLY_CMDS):
            if attempt:
                self._run(worktree, _RESET, _APPLY_LIMIT_S)
            result = self._run(worktree, f"{command} /tmp/{_PATCH}", _APPLY_LIMIT_S)
            if result.returncode == 0:
                return None
            said = result.output or said
        check = f"git apply --check --reverse /tmp/{_PATCH}"
        is_there = self._run(worktree, check, _APPLY_LIMIT_S).returncode == 0
        return None if is_there else said

    def _run(self, worktree: Worktree, command: str, limit_s: float) -> CommandResult:
        return run_bounded(
            sandboxed_argv(
                self.bubblewrap,
                ["bash", "--noprofile", "--norc", "-c", command],
                workspace=worktree.path,
                inside=Path(TESTBED),
                scratch=worktree.scratch,
                environment=_environment(),
            ),
            cwd=worktree.path,
            environment=_environment(),
            time_limit_s=limit_s,
            output_limit_bytes=_LOG_LIMIT_BYTES,
            is_stopped=self._stopped.is_set,
        )


def _environment() -> dict[str, str]:
    """All that the eval script finds; nothing is inherited."""
    return {
        "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        # plugins of our environment, not of the repository's
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }


def _shortened(text: str) -> str:
    """The end of what a command said, in one line: git names the file that failed there."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_REASON_CHARS else f"... {line[-_MAX_REASON_CHARS:]}"
