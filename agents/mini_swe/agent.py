"""mini-swe-agent's default agent as one job per run, with what only the loop knows."""

from __future__ import annotations

from typing import Any

from minisweagent.agents.default import DefaultAgent

from .jobs import JobOfModel, TurnLog
from .models import AgentKVModel


class AgentKVAgent(DefaultAgent):
    """The default agent; its run is a session, which ends in whatever way the loop does.

    instance_id: becomes the job's id together with the model's run id, unless the model was given
        a job id.

    With a model that is not ours, the session tags what goes through the OpenAI SDK, and
    `turn_rows` stays empty.
    """

    def __init__(self, *args: Any, instance_id: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.instance_id = instance_id
        is_ours = isinstance(self.model, AgentKVModel)
        self._turns = self.model.agentkv_turns if is_ours else TurnLog()

    @property
    def turn_rows(self) -> list[dict[str, Any]]:
        """The turns so far: times in seconds, tokens, command; also after the loop failed."""
        return self._turns.rows

    def run(self, task: str = "", **kwargs: Any) -> dict[str, Any]:
        """The base class's run, as a job."""
        is_ours = isinstance(self.model, AgentKVModel)
        jobs = self.model.agentkv_job if is_ours else JobOfModel()
        if is_ours:
            self.model.begin_conversation()
            self._turns = self.model.agentkv_turns
        with jobs.session(self.instance_id) as job:
            jobs.enter(job)
            try:
                result: dict[str, Any] = super().run(task, **kwargs)
            finally:
                self._turns.end_tool()  # a submission, or an interrupt, ends it without a word
                jobs.leave()
        return result

    def query(self) -> dict[str, Any]:
        """The base class's query; whether it is the last one is known here."""
        self._turns.limit_calls(self.config.step_limit, self.n_calls)
        message: dict[str, Any] = super().query()
        return message
