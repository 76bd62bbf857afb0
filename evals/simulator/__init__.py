"""vLLM's real scheduler on a virtual clock: policies compared without a server or a GPU."""
