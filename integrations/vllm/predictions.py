"""What an engine does for predictions beside scheduling: reads replies, keeps what was learned.

Connects vLLM's requests to the pure parts; all of it but the side work runs on the engine's main
thread. Under a policy that predicts nothing there is nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.request import Request

from . import seam
from .predictor_store import open_store
from .reply_reader import MAX_REPLY_TOKENS, Reply, ReplyReader
from .retention import Retention
from .side_work import SideWork, Task


class Predictions:
    """Reading and saving for one engine: inline until `start`, then in a thread of its own.

    `decode` makes text of tokens, `on_read` is called after each reply, both where the work is
    done; `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        retention: Retention,
        vllm_config: Any,
        *,
        decode: Callable[[list[int]], str],
        on_read: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._retention = retention
        self._side_work = SideWork(_run_guarded)
        self._replies = ReplyReader(decode, self._side_work, on_read=on_read)
        engine = seam.engine_number(vllm_config)
        self._store = open_store(retention.policy, self._side_work, engine=engine, clock=clock)

    def start(self) -> None:
        """Do the work in a thread from now on."""
        if self._retention.policy.predicts:
            self._side_work.start()

    def turn_ended(self, request: Request) -> None:
        """Have the reply of a finished turn read, if its job's pin waits for that."""
        if request.request_id in self._retention.decisions.unread:
            token_ids, stop_token_id = seam.end_of_reply(request, MAX_REPLY_TOKENS)
            self._replies.read(Reply(request.request_id, token_ids, stop_token_id))
            self.apply()

    def apply(self) -> None:
        """Decide about the pins whose replies have been read. O(1) if none has."""
        for read in self._replies.take():
            self._retention.reply_read(read.request_id, read.command)

    def save_if_due(self) -> None:
        """Write what was learned if it is time to. O(1) if not."""
        if self._store is not None:
            self._store.save_if_due()

    @property
    def next_save_s(self) -> float | None:
        """When there will be something to write; None while there is nothing new."""
        return None if self._store is None else self._store.due_s

    def close(self) -> None:
        """Write what was learned, before the engine ends."""
        if self._store is not None:
            self._store.close()


@seam.guarded(None)
def _run_guarded(task: Task) -> None:
    task()
