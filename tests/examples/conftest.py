"""What the tests of vLLM's scheduler have, for the example policies on it."""

from tests.integrations.vllm.conftest import model_config, no_hook_failed

__all__ = ["model_config", "no_hook_failed"]
