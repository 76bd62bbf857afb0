"""The text of simulated replies: each command that a workload runs has a token that stands for it.

A reply is that token over and over; decoded, it is a bash fence with the command, so that a policy
which reads replies reads this one as it would read a model's.
"""

from __future__ import annotations

NO_COMMAND = 0
"""The token of a reply that runs nothing."""


class Replies:
    """Tokens for commands, and back."""

    def __init__(self) -> None:
        self._commands = [""]
        self._tokens = {"": NO_COMMAND}

    def token_of(self, command: str) -> int:
        """The token of a reply that runs this."""
        token = self._tokens.setdefault(command, len(self._commands))
        if token == len(self._commands):
            self._commands.append(command)
        return token

    def decode(self, token_ids: list[int]) -> str:
        """The text of (the end of) one reply."""
        command = self._commands[token_ids[-1]] if token_ids else ""
        return f"```bash\n{command}\n```" if command else "Done."
