"""Finds the tool calls in a model's reply, whether in fields of its own or written in its text."""

from agentkv.tool_calls.call import COMMAND_ARGUMENTS, Source, ToolCall
from agentkv.tool_calls.parsing import parse_tool_calls

__all__ = ["COMMAND_ARGUMENTS", "Source", "ToolCall", "parse_tool_calls"]
