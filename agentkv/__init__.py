"""Keep an LLM agent's KV cache warm while its tools run."""

__version__ = "0.1.0"
