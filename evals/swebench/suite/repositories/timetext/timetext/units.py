"""The units that a duration is written in."""

SECONDS_OF = {"d": 86400, "h": 3600, "m": 60, "s": 1}
"""Unit: its length in seconds, longest first."""
