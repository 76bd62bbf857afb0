"""Every error that agentkv raises on its own account.

    AgentKVError
    ├── AgentKVServerError    the server lacks the plugin, or answered with an error
    ├── ServerStartError      a server process that agentkv started did not come up
    └── TagError              a wire field of the wrong type or out of range (also a ValueError)

Errors of the OpenAI client, or of the caller's own code, pass through unchanged.
"""

from __future__ import annotations

import reprlib

_MAX_SHOWN_CHARS = 80

_shorten = reprlib.Repr()
_shorten.maxstring = _MAX_SHOWN_CHARS
_shorten.maxother = _MAX_SHOWN_CHARS
_shorten.maxlong = _MAX_SHOWN_CHARS
_shorten.maxlevel = 2


class AgentKVError(Exception):
    """Base of the errors below."""


class AgentKVServerError(AgentKVError):
    """The server has no agentkv plugin, cannot be reached, or answered with an error."""


class ServerStartError(AgentKVError):
    """A vLLM server process ended, or stayed silent, before it was ready."""


class TagError(AgentKVError, ValueError):
    """A wire field that cannot be accepted; the text names field, value seen and what is allowed.

    The value is shown clipped, so that a megabyte of input gives a line of message.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        super().__init__(f"{field}: got {_shorten.repr(value)}, allowed is {allowed}")

    def __reduce__(self) -> tuple[type[TagError], tuple[str, object, str]]:
        return type(self), (self.field, self.value, self.allowed)
