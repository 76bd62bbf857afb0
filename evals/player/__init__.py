"""Plays a workload on a running server through the client library."""
