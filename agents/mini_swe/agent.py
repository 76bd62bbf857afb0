"""mini-swe-agent's default agent as one job per run: it knows the step limit and the end."""

from __future__ import annotations

from typing import Any

from minisweagent.agents.default import DefaultAgent

from .jobs import JobOfModel, TurnLog
from .models import AgentKVModel


class AgentKVAgent(DefaultAgent):
    """The default agent; each run is a session, which ends when the loop ends.

    instance_id: with the model's run id, the job's id, unless the model has a job id of its own.

    With a model of another class, the session tags calls of the OpenAI SDK, and `turn_rows` stays
    empty.
    """

    def __init__(self, *args: Any, instance_id: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.instance_id = instance_id
        is_ours = isinstance(self.model, AgentKVModel)
        self._turns = self.model.agentkv_turns if is_ours else TurnLog()

    @property
    def turn_rows(self) -> list[dict[str, Any]]:
        """The turns so far: times in seconds, tokens, command; also after a failure."""
        return self._turns.rows

    def run(self, task: str = "", **kwargs: Any) -> dict[str, Any]:
        """Run the base class's loop as one job."""
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
                self._turns.end_tool()  # no observation follows a submission or an interrupt
                jobs.leave()
        return result

    def query(self) -> dict[str, Any]:
        """Run the base class's query, after telling the turns how many calls are left."""
        self._turns.limit_calls(self.config.step_limit, self.n_calls)
        message: dict[str, Any] = super().query()
        return message
