"""Error answers in the shapes that OpenAI's and Anthropic's clients, and vLLM itself, use."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import JSONResponse

_TYPES: Mapping[int, str] = {
    400: "BadRequestError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    413: "PayloadTooLargeError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


def openai_error(
    status: int,
    message: str,
    *,
    field: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """An error as vLLM's OpenAI routes write it; `field` is the name of what was wrong."""
    error = {"message": message, "type": _TYPES[status], "param": field, "code": status}
    return JSONResponse({"error": error}, status_code=status, headers=dict(headers or {}))


def anthropic_error(message: str) -> JSONResponse:
    """A rejected request (400) as Anthropic's messages route writes it."""
    error = {"type": "invalid_request_error", "message": message}
    return JSONResponse({"type": "error", "error": error}, status_code=400)
