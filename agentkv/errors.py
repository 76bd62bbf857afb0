"""Every error that agentkv raises on its own account, in one tree.

    AgentKVError
    ├── AgentKVServerError    a server lacks the plugin, or cannot be used as it is
    │   ├── NoAnswerError     it could not be reached, or did not answer in time
    │   └── StatusError       it answered with an HTTP error
    ├── ServerStartError      a server process that agentkv started did not come up
    ├── SetupError            the installation lacks a package, a model or a version
    ├── SettingsError         the plugin's settings in `--additional-config` are not valid
    ├── InputError            an option, file or workload cannot be used (also a ValueError)
    │   └── TagError          a wire field has the wrong type or is out of range
    └── RunError              a measurement broke off

Commands print the text and end with status 1 or 2. Errors of the OpenAI client, and of the caller's
own code, pass through unchanged.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

from agentkv.visible import visible

_MAX_SHOWN_CHARS = 80

_shorten = reprlib.Repr()
_shorten.maxstring = _MAX_SHOWN_CHARS
_shorten.maxother = _MAX_SHOWN_CHARS
_shorten.maxlong = _MAX_SHOWN_CHARS
_shorten.maxlevel = 2


def _clipped(value: object) -> str:
    """Show a value in at most _MAX_SHOWN_CHARS; a list of long texts is longer even shortened."""
    try:
        text = _shorten.repr(value)
    except ValueError:  # Python writes no number of more than 4,300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 3] + "..."


class AgentKVError(Exception):
    """Base of the errors below; what a message quotes of others does nothing to a terminal."""

    def __str__(self) -> str:
        return visible(super().__str__(), keep="\n")


class AgentKVServerError(AgentKVError):
    """The server has no agentkv plugin, cannot be reached, or answered with an error."""


class NoAnswerError(AgentKVServerError):
    """The server could not be reached, or did not answer in time (`is_late`)."""

    def __init__(self, message: str, *, is_late: bool = False) -> None:
        super().__init__(message)
        self.may_pass = not is_late


class StatusError(AgentKVServerError):
    """The server answered with the HTTP error `status`."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status

    @property
    def may_pass(self) -> bool:
        """The same call may well succeed a little later: the server is busy or starts."""
        return self.status in (408, 429) or self.status >= 500


class ServerStartError(AgentKVError):
    """A vLLM server process ended, or stayed silent, before it was ready."""


class SetupError(AgentKVError):
    """The installation lacks something: the text says what, and how to install it."""


class SettingsError(AgentKVError):
    """The settings given in `--additional-config` are not valid."""


class InputError(AgentKVError, ValueError):
    """An option, a file or a workload that cannot be used; the text says what would be."""


class RunError(AgentKVError):
    """A measurement broke off; the text says why, and what of it is on disk."""


class TagError(InputError):
    """A wire field cannot be accepted; the text names field, value seen and what is allowed.

    The value is clipped, so that a megabyte of input gives one line of message.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        super().__init__(f"{field}: got {_clipped(value)}, allowed is {allowed}")

    def __reduce__(self) -> tuple[type[TagError], tuple[str, object, str]]:
        return type(self), (self.field, self.value, self.allowed)


_IN_WORDS: dict[type[BaseException], str] = {
    FileNotFoundError: "no such file",
    IsADirectoryError: "this is a folder",
    PermissionError: "no permission",
    UnicodeError: "no text in UTF-8",
}


def reason_of(error: BaseException) -> str:
    """Why a file cannot be used, in a few words: `no such file`."""
    words = next((text for kind, text in _IN_WORDS.items() if isinstance(error, kind)), None)
    return words or getattr(error, "strerror", None) or str(error)


def not_among(seen: str, known: Iterable[str], allowed: str = "") -> str:
    """What was seen, then the known name that was probably meant, or else what is allowed."""
    from difflib import get_close_matches  # for errors only

    names = list(known)
    near = get_close_matches(seen[:_MAX_SHOWN_CHARS], names, n=1, cutoff=0.75)
    end = f": did you mean {near[0]}?" if near else f", allowed are {allowed or ', '.join(names)}"
    return f"got {_clipped(seen)}{end}"


def how_to_install(extras: str) -> str:
    """The command that installs some extras: in a clone, as the package index lacks the name."""
    no_gpu = "; without a GPU `make setup`" if "vllm" in extras.split(",") else ""
    return f"run `pip install '.[{extras}]'` in the clone of agentkv{no_gpu}"
