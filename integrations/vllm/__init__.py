"""Scheduling policies for stock vLLM, loaded through its plugin entry points.

Importing this package imports nothing of vLLM.
"""
