"""The `/v1/agentkv` routes of a server as Python methods; one call is one request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from agentkv.client.server import CALL_TIMEOUT_S, job_path, root_of, send_request
from agentkv.errors import AgentKVServerError, StatusError
from agentkv.protocol import ToolEvent

COMMAND_TIMEOUT_S = 35.0
"""For commands that a person waits for; the server itself gives its engine up after 30 s."""


class ServerAPI:
    """The agentkv routes behind `url`, a server's root or its OpenAI base URL (ending in `/v1`).

    timeout_s: for each request; commands give a busy engine more than an agent's call may wait.

    Every method raises AgentKVServerError when the server cannot be reached in time, answers with
    an error, or answers with something else than JSON. Safe to share between threads.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        self.root_url = root_of(url)
        self._headers = dict(headers or {})
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout_s = timeout_s

    def info(self) -> dict[str, Any]:
        """Version, policy and its settings, vLLM version, block size and number of blocks."""
        return self._get("/info")

    def stats(self) -> dict[str, Any]:
        """Totals and gauges."""
        return self._get("/stats")

    def jobs(self) -> list[dict[str, Any]]:
        """The live jobs."""
        return list(self._get("/jobs").get("jobs", ()))

    def job(self, job_id: str) -> dict[str, Any]:
        """One live job; StatusError 404 for an unknown one."""
        return self._get(job_path(job_id))

    def explained(self, job_id: str | None = None, *, worst: int = 1) -> list[dict[str, Any]]:
        """A job's turns and why they missed, or those of the `worst` jobs; StatusError 404 for an
        unknown one."""
        query = f"worst={worst}" if job_id is None else f"job={quote(job_id, safe='')}"
        return list(self._noted(f"/explain?{query}").get("jobs", ()))

    def timestamps(self) -> dict[str, Any]:
        """When each job arrived, ran, was pinned and unpinned, and why."""
        return self._noted("/timestamps")

    def send_tool_event(self, job_id: str, event: ToolEvent) -> None:
        """Report that a tool of the job started or finished."""
        self._send("POST", f"{job_path(job_id)}/tool", event.as_fields())

    def release(self, job_id: str) -> None:
        """Free the job's pinned blocks now."""
        self._send("POST", f"{job_path(job_id)}/release", {})

    def _noted(self, path: str) -> dict[str, Any]:
        """A reading for a person: its absence, if the server has no plugin, is explained."""
        try:
            return self._get(path)
        except StatusError as error:
            if error.status == 404 and not self._has_plugin():
                raise AgentKVServerError(
                    f"{self.root_url} runs without agentkv's policies: start it with "
                    "--scheduling-policy agentkv where agentkv is installed"
                ) from error
            raise

    def _has_plugin(self) -> bool:
        try:
            self.info()
        except StatusError as error:
            return error.status != 404
        return True

    def _get(self, path: str) -> dict[str, Any]:
        answer = self._send("GET", path, None)
        if not isinstance(answer, dict):
            raise AgentKVServerError(f"{self.root_url}: no JSON object came back")
        return answer

    def _send(self, method: str, path: str, body: Mapping[str, object] | None) -> Any:
        url = f"{self.root_url}/v1/agentkv{path}"
        return send_request(method, url, body, headers=self._headers, timeout_s=self._timeout_s)
