"""Measurements: the pin verifier and the overhead benchmark."""
