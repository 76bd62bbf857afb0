"""What vLLM's API server does before a turn reaches the engine, done once for each token."""
