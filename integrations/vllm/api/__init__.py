"""The HTTP side of the plugin: tags and routes in vLLM's API server, and the engine's answers."""
