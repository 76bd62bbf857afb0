"""Somebody else's scheduling as a policy of `agentkv compare`: a server's flags, or a proxy.

A rival is either code inside vLLM (a `--scheduler-cls`, a setting of stock) or a proxy in front of
a stock server. Reads what the command line says of one, and knows what its requests carry.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from agentkv.errors import InputError
from agentkv.integrations.vllm.serve import value_of
from agentkv.policies.names import PolicyChoice, known_policies

_DESCRIPTION = re.compile(r"(?P<name>[\w.-]+)=(?P<words>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rival:
    """A vLLM server with flags of its own, with a proxy in front of it if there is a command.

    In the proxy's command `{server}` stands for the server's URL, and `{port}` for the port of
    127.0.0.1 on which the proxy must listen.
    """

    name: str
    server_flags: tuple[str, ...] = ()
    proxy: tuple[str, ...] = ()
    scheduling_policy: ClassVar = "fcfs"
    """Unless the flags name another."""
    has_offload: ClassVar = False

    def flags(self) -> list[str]:
        """Flags of `vllm serve`."""
        return list(self.server_flags)

    def proxy_command(self, server_url: str, port: int) -> list[str]:
        """The proxy's command for this server."""
        values = {"{server}": server_url, "{port}": str(port)}
        command = self.proxy
        for name, value in values.items():
            command = tuple(word.replace(name, value) for word in command)
        return list(command)


Contestant = PolicyChoice | Rival
"""What one run of a comparison is made with."""


def read_rivals(flags: Sequence[str], proxies: Sequence[str]) -> list[Rival]:
    """The rivals of `--rival NAME=FLAGS` and `--rival-proxy NAME=COMMAND`; a name may have both.

    Raises InputError if one cannot be read, has a policy's name, or needs what is not installed.
    """
    rivals: dict[str, Rival] = {}
    for text in flags:
        name, words = _read("--rival", "FLAGS", text, taken=rivals)
        _check_class(name, words)
        rivals[name] = Rival(name, server_flags=words)
    with_proxy: set[str] = set()
    for text in proxies:
        name, words = _read("--rival-proxy", "COMMAND", text, taken=with_proxy)
        _check_proxy(name, words)
        with_proxy.add(name)
        rivals[name] = replace(rivals.get(name, Rival(name)), proxy=words)
    return list(rivals.values())


def _read(flag: str, what: str, text: str, taken: Container[str]) -> tuple[str, tuple[str, ...]]:
    """The name, and the words behind the first `=`, quoted as in a shell."""
    found = _DESCRIPTION.fullmatch(text)
    if found is None:
        raise InputError(
            f"{flag}: got {text!r}: write NAME={what}; a name has letters, digits, .-_"
        )
    name = found["name"]
    if name in taken or name in known_policies():
        raise InputError(f"{flag}: the name {name!r} is taken: choose another")
    try:
        return name, tuple(shlex.split(found["words"]))
    except ValueError as error:
        raise InputError(f"{flag} {name}: {found['words']!r} cannot be split: {error}") from error


def _check_class(name: str, flags: Sequence[str]) -> None:
    """Raise InputError if the package of a `--scheduler-cls` is not installed."""
    path = value_of(flags, "--scheduler-cls")
    package = (path or "").partition(".")[0]
    if path is not None and (not package or importlib.util.find_spec(package) is None):
        raise InputError(
            f"--rival {name}: --scheduler-cls {path} needs the package {package!r}, which is not "
            f"installed: pip install --no-deps {package}"
        )


def _check_proxy(name: str, command: Sequence[str]) -> None:
    """Raise InputError if the command is not installed, or lacks one of its placeholders."""
    for placeholder in ("{server}", "{port}"):
        if not any(placeholder in word for word in command):
            raise InputError(
                f"--rival-proxy {name}: got {shlex.join(command)!r}: the command needs {{server}} "
                "where the server's URL goes, and {port} where the port to listen on goes"
            )
    if shutil.which(command[0]) is None:
        raise InputError(
            f"--rival-proxy {name}: there is no command {command[0]!r}: install it, for instance "
            f"with pip install {command[0]}, or give its whole path"
        )
