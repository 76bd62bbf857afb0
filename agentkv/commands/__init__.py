"""What a bash command runs: its programs, behind prefixes, pipes and quotes, and its features."""

from agentkv.commands.analysis import (
    MAX_ANALYZED_BYTES,
    CommandAnalysis,
    analyze_command,
    forget_analyses,
)
from agentkv.commands.program import Program

__all__ = [
    "MAX_ANALYZED_BYTES",
    "CommandAnalysis",
    "Program",
    "analyze_command",
    "forget_analyses",
]
