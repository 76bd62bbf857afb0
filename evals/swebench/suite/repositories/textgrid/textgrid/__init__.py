"""Rows of text: read from lines, laid out as a grid."""
