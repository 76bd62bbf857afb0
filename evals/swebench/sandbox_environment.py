"""mini-swe-agent's bubblewrap environment, in which the repository is at /testbed.

The base class binds its folder under the name it has on the host, shows all of /etc and leaves the
network as it is. What an agent runs in here sees programs, the running Python, its repository and a
/tmp of its own, and has no network.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from minisweagent.environments.extra.bubblewrap import BubblewrapEnvironment
from pydantic import BaseModel, Field

from agentkv.agents.sandbox import CommandResult, run_bounded, sandboxed_argv

TESTBED = "/testbed"
"""Where the images of SWE-bench have the repository, which prompts and eval scripts name."""
_OUTPUT_LIMIT_BYTES = 16 * 1024 * 1024  # a patch comes out this way, and must come out whole
_MAX_FILE_KIB = 1024 * 1024  # a runaway `yes > file` ends here, not with the disk full
_LIMITED = f'ulimit -f {_MAX_FILE_KIB}; exec "$@"'
_ENVIRONMENT = {
    "PATH": os.pathsep.join([f"{sys.prefix}/bin", "/usr/local/bin", "/usr/bin", "/bin"]),
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "PYTHONDONTWRITEBYTECODE": "1",
    # plugins of our environment, not of the repository's
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}
_TIMED_OUT = -1  # the status that mini-swe-agent's environments give


class SandboxConfig(BaseModel):
    """What mini-swe-agent's configuration gives an environment; the last three are ours."""

    cwd: str = TESTBED
    env: dict[str, str] = {}
    timeout: int = 30
    interpreter: list[str] = ["bash", "-c"]
    # of this machine: neither for the prompt's templates nor for the trajectory
    program: str = Field(exclude=True)
    worktree: Path = Field(exclude=True)
    scratch: Path = Field(exclude=True)


class SandboxEnvironment(BubblewrapEnvironment):
    """Runs each command in a bubblewrap of its own; the worktree is its maker's to remove."""

    def __init__(self, **kwargs: Any) -> None:
        self.config = SandboxConfig(**kwargs)

    def execute(
        self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None
    ) -> dict[str, Any]:
        """Run one command; raises Submitted if it is the one that hands in the patch."""
        limit_s = timeout or self.config.timeout
        try:
            result = self._run(str(action.get("command", "")), cwd or self.config.cwd, limit_s)
        except (OSError, ValueError) as error:  # a NUL, or more than the kernel takes as arguments
            output = _failed("", f"the command could not be started: {error}", error)
        else:
            output = {
                "output": result.output,
                "returncode": result.returncode,
                "exception_info": "",
            }
            if result.timed_out:
                reason = f"the command ran longer than {limit_s} s and was ended"
                output = _failed(result.output, reason, TimeoutError(reason))
        self._check_finished(output)
        return output

    def cleanup(self) -> None:
        """Nothing to do: every command's sandbox ends with the command."""

    def _run(self, command: str, cwd: str, limit_s: float) -> CommandResult:
        environment = _ENVIRONMENT | self.config.env
        argv = ["bash", "--noprofile", "--norc", "-c", _LIMITED, "bash"]
        argv += ["env", f"--chdir={cwd}", *self.config.interpreter, command]
        return run_bounded(
            sandboxed_argv(
                self.config.program,
                argv,
                workspace=self.config.worktree,
                inside=Path(TESTBED),
                scratch=self.config.scratch,
                environment=environment,
            ),
            cwd=self.config.worktree,
            environment=environment,
            time_limit_s=limit_s,
            output_limit_bytes=_OUTPUT_LIMIT_BYTES,
        )


def _failed(output: str, reason: str, error: Exception) -> dict[str, Any]:
    """In the shape in which mini-swe-agent's environments tell of a command that failed."""
    return {
        "output": output,
        "returncode": _TIMED_OUT,
        "exception_info": f"An error occurred while executing the command: {reason}",
        "extra": {"exception_type": type(error).__name__, "exception": str(error)},
    }
