"""Multi-turn load: what jobs there are, how they arrive, what became of them."""
