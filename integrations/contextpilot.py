"""Drops a job's entries from a ContextPilot index server once the job's KV is gone for good.

    python -m agentkv.integrations.contextpilot /run/agentkv.sock --url http://127.0.0.1:8765

Listens on the server's `kv_socket`, and posts to the index server. Do not set
CONTEXTPILOT_INDEX_URL for the vLLM server: the package's own hook drops an entry whenever the
prefix cache evicts it, although the job goes on, and fails under vLLM 0.32.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable

import httpx
import tenacity

from agentkv.listeners import KVFree, follow

_PREFIX = re.compile(r"^(?:chatcmpl|cmpl|batch)-")
NO_INDEX_YET = 503
"""Status of the index server before the first /reorder: it has no entry that could be dropped."""


def index_ids(free: KVFree) -> list[str]:
    """The ids of the freed requests as the index knows them: vLLM puts a prefix before the id that
    a client gives as `request_id` or `X-Request-Id`."""
    return [_PREFIX.sub("", request_id) for request_id in free.request_ids]


def evict_all(frees: Iterable[KVFree], url: str, *, retries: int = 3) -> None:
    """Ask the index server to drop the entries of each free; warns of one that it did not take."""
    with httpx.Client(base_url=url, timeout=5.0) as client:

        @tenacity.retry(
            retry=tenacity.retry_if_exception_type(httpx.HTTPError),
            stop=tenacity.stop_after_attempt(1 + retries),
            wait=tenacity.wait_exponential(0.5),
            reraise=True,
        )
        def evict(request_ids: list[str]) -> None:
            answer = client.post("/evict", json={"request_ids": request_ids})
            if answer.status_code != NO_INDEX_YET:
                answer.raise_for_status()

        for free in frees:
            try:
                evict(index_ids(free))
            except httpx.HTTPError as error:
                print(f"job {free.job_id} stays in the index of {url}: {error}", file=sys.stderr)


def main() -> None:
    """Run until it is stopped, also while the server is not there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("socket", help="the server's setting kv_socket")
    parser.add_argument("--url", default="http://127.0.0.1:8765", help="the index server")
    options = parser.parse_args()
    evict_all(follow(options.socket), options.url)


if __name__ == "__main__":
    main()
