"""`agentkv doctor`: what is installed, whether the plugin loads, whether a server has it."""

from .command import main

__all__ = ["main"]
