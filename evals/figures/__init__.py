"""Figures from rows."""
