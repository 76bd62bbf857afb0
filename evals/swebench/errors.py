"""The error of the SWE-bench commands."""

from agentkv.errors import AgentKVError


class SwebenchError(AgentKVError):
    """Instances, a repository, a run's folder or an environment that cannot be used as it is."""
