"""The errors of the SWE-bench commands."""

from agentkv.errors import AgentKVError


class SwebenchError(AgentKVError):
    """Instances, a repository, a run's folder or an environment that cannot be used as it is."""


class HarnessError(SwebenchError):
    """The official harness, or what it runs in, failed while it graded."""
