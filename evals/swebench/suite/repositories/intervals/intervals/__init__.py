"""Half-open spans of numbers."""
