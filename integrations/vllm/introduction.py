"""Says once, when a server is ready, what it runs and where its page is, and who can reach it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentkv import __version__

PAGE_PATH = "/v1/agentkv/ui"
ANY_HOST = ("", "0.0.0.0", "::")


def introduction(
    args: object, vllm_config: object, settings: Mapping[str, Any], *, has_key: bool
) -> list[str]:
    """Return the lines; `args` are the flags of `vllm serve`, which may lack any."""
    cache = getattr(vllm_config, "cache_config", None)
    num_blocks, block_size = getattr(cache, "num_gpu_blocks", 0), getattr(cache, "block_size", 0)
    pool = f"{num_blocks * block_size:,} tokens of KV cache" if num_blocks and block_size else ""
    said = [f"policy {settings['policy']}", pool, f"live page at {page_address(args)}"]
    lines = [f"agentkv {__version__}: {', '.join(part for part in said if part)}"]
    is_open = (getattr(args, "host", None) or "") in ANY_HOST and not getattr(args, "uds", None)
    if is_open and not has_key:
        lines.append(
            "the server listens on all interfaces and asks for no key: --host 127.0.0.1 keeps it "
            "to this machine, --api-key KEY asks for one"
        )
    return lines


def page_address(args: object) -> str:
    """Return the address of the live page, as this machine can open it."""
    host = getattr(args, "host", None) or ""
    host = "127.0.0.1" if host in ("", "0.0.0.0") else host
    host = f"[{'::1' if host == '::' else host}]" if ":" in host else host
    scheme = "https" if getattr(args, "ssl_certfile", None) else "http"
    root_path = (getattr(args, "root_path", None) or "").rstrip("/")
    return f"{scheme}://{host}:{getattr(args, 'port', None) or 8000}{root_path}{PAGE_PATH}"
