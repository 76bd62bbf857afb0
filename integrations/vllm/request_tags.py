"""The tags of a request as the engine gets it."""

from __future__ import annotations

from vllm.v1.request import Request

from agentkv.protocol import Tags, parse_tags


def tags_of(request: Request) -> Tags:
    """The tags in a request's `vllm_xargs`; vLLM's own session id is the job if none is named.

    Raises TagError for a field that is wrong.
    """
    sampling = request.sampling_params
    fields = dict(sampling.extra_args or {}) if sampling is not None else {}
    if fields.get("job_id") is None and request.session_id:
        fields["job_id"] = request.session_id
    return parse_tags(fields, flags_as_numbers=True)
