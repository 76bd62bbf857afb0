"""Durations as text."""
