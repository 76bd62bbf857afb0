"""Analyzes a bash command: the programs it runs, behind prefixes, pipes and quotes.

`analyze_command` is the door. Imports no other room.
"""

from agentkv.commands.analysis import CommandAnalysis, analyze_command, command_key
from agentkv.commands.programs import Program

__all__ = ["CommandAnalysis", "Program", "analyze_command", "command_key"]
