"""What somebody has put in place of an OpenAI client's own methods and resources.

Tracers do so: `client.chat.completions.create = traced(client.chat.completions.create)`. Such a
function calls the client that it was made for, so a copy of the client cannot take it along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any


def replacements_on(client: Any) -> list[str]:
    """Their names, such as "chat.completions.create". Looks only at what was used already."""
    return list(_replacements_on(client, ""))


def _replacements_on(holder: Any, prefix: str) -> Iterator[str]:
    for name, value in list(vars(holder).items()):
        own = getattr(type(holder), name, None)
        if isinstance(own, cached_property):
            if _is_of_the_sdk(type(value)):
                yield from _replacements_on(value, f"{prefix}{name}.")
            elif _is_of_the_sdk(own.func):  # or a subclass has made it, and makes it anew
                yield f"{prefix}{name}"
        elif callable(own):
            yield f"{prefix}{name}"


def _is_of_the_sdk(definition: type | Callable[..., Any]) -> bool:
    return definition.__module__.partition(".")[0] == "openai"
