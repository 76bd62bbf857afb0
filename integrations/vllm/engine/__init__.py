"""vLLM's scheduler with our policies: the only room that imports it."""
