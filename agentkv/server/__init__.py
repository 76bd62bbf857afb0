"""Starts a vLLM server for demos, tests and measurements, and prepares the model it serves."""
