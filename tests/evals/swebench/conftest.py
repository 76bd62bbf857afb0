"""What holds for all tests of the SWE-bench commands."""

from __future__ import annotations

from agentkv.evals.swebench.agent_logs import quiet_imports

# litellm downloads prices at its first import otherwise, in a thread that outlives a test
quiet_imports()
