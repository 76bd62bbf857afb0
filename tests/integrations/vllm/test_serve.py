"""`agentkv serve`: which flags it fills in and what it refuses before vLLM's long start."""

import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentkv import __version__
from agentkv.errors import AgentKVError
from agentkv.integrations.vllm.introduction import introduction, page_address
from agentkv.integrations.vllm.serve import (
    check_port,
    complete_flags,
    main,
    value_of,
    with_tier,
)
from agentkv.policies.names import DEFAULT_POLICY


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text("{}")
    return str(tmp_path)


def test_defaults_are_filled_in_for_the_cpu_build(model: str) -> None:
    """The CPU build gets a policy, dtype, context length and eager mode."""
    flags = complete_flags([model], is_cpu=True)
    assert value_of(flags, "--scheduling-policy") == DEFAULT_POLICY
    assert value_of(flags, "--dtype") == "float32"
    assert value_of(flags, "--max-model-len") == "4096"
    assert "--enforce-eager" in flags


def test_a_gpu_server_gets_no_cpu_flags(model: str) -> None:
    """With a GPU the defaults added are the policy and cached tokens in replies."""
    defaults = ["--scheduling-policy", DEFAULT_POLICY, "--enable-prompt-tokens-details"]
    assert complete_flags([model], is_cpu=False) == [model, *defaults]


@pytest.mark.parametrize("given", [["--dtype=bfloat16"], ["--dtype", "bfloat16"]])
@pytest.mark.parametrize("policy", ["--scheduling-policy", "--scheduling_policy"])
def test_what_the_caller_gives_stays(given: list[str], policy: str, model: str) -> None:
    """Every spelling of a flag that vLLM takes is seen."""
    flags = complete_flags([model, policy, "fcfs", *given], is_cpu=True)
    assert value_of(flags, "--scheduling-policy") == "fcfs"
    assert DEFAULT_POLICY not in flags
    assert value_of(flags, "--dtype") == "bfloat16"
    assert "float32" not in flags


def test_a_negated_default_stays_negated(model: str) -> None:
    """Ours come first, and the last of a repeated flag counts."""
    flags = complete_flags([model, "--no-enforce-eager"], is_cpu=True)
    assert flags.index("--enforce-eager") < flags.index("--no-enforce-eager")


def test_a_config_file_is_left_to_speak() -> None:
    """vLLM lets flags win over its file, so ours would: none is added, no port is assumed."""
    flags = ["--config", "server.yaml"]
    assert complete_flags(flags, is_cpu=True) == flags
    check_port(flags)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_a_free_port_of_an_ipv6_host_passes() -> None:
    """`--host ::` is a host like any other."""
    check_port(["--host", "::1", "--port", "0"])


def test_the_last_of_a_repeated_flag_counts() -> None:
    """As argparse has it."""
    assert value_of(["--port", "1", "--port=2"], "--port") == "2"
    assert value_of(["--port", "1"], "--host") is None


ARGS = {"host": None, "port": 8000, "root_path": "", "ssl_certfile": None, "uds": None}


@pytest.mark.parametrize(
    ("flags", "address"),
    [
        ({}, "http://127.0.0.1:8000/v1/agentkv/ui"),
        ({"host": "0.0.0.0", "port": 81}, "http://127.0.0.1:81/v1/agentkv/ui"),
        ({"host": "::", "root_path": "/a/"}, "http://[::1]:8000/a/v1/agentkv/ui"),
        ({"host": "box", "ssl_certfile": "c.pem"}, "https://box:8000/v1/agentkv/ui"),
    ],
)
def test_the_pages_address_is_the_servers(flags: dict[str, Any], address: str) -> None:
    """The address is one that this machine can open."""
    assert page_address(SimpleNamespace(**{**ARGS, **flags})) == address


@pytest.mark.parametrize(
    ("flags", "has_key", "is_open"),
    [
        ({}, False, True),
        ({"host": "::"}, False, True),
        ({}, True, False),
        ({"host": "127.0.0.1"}, False, False),
        ({"uds": "/tmp/socket"}, False, False),
    ],
)
def test_a_server_introduces_itself(flags: dict[str, Any], has_key: bool, is_open: bool) -> None:
    """One line has version, policy, pool and page; another says that anybody may ask, if so."""
    config = SimpleNamespace(cache_config=SimpleNamespace(num_gpu_blocks=200, block_size=32))
    args = SimpleNamespace(**{**ARGS, **flags})
    first, *others = introduction(args, config, {"policy": "agentkv"}, has_key=has_key)
    pool = "policy agentkv, 6,400 tokens of KV cache, live page at http"
    assert first.startswith(f"agentkv {__version__}: {pool}")
    assert ["on all interfaces" in line for line in others] == [True] * is_open


def test_a_port_in_use_is_refused() -> None:
    """It says what to do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with pytest.raises(AgentKVError, match="give another with --port"):
            main(["--host", "127.0.0.1", "--port", port])


def test_a_tier_becomes_vllms_offloading(model: str) -> None:
    """Of that size, for replies as well; other arguments stay in their order."""
    flags = with_tier([model, "--kv-tier-gib", "1.5", "--port", "1"], is_cpu=False)
    assert flags[:3] == [model, "--port", "1"]
    assert value_of(flags, "--kv-offloading-size") == "1.5"
    config = json.loads(value_of(flags, "--kv-transfer-config") or "")
    assert config == {
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"offload_prompt_only": False},
    }


@pytest.mark.parametrize(
    ("flags", "is_cpu", "message"),
    [
        (["--kv-tier-gib", "1"], True, "has no tier; it needs a GPU"),
        (["--kv-tier-gib", "1", "--kv-transfer-config", "{}"], False, "both name a KV connector"),
    ],
)
def test_flags_that_no_tier_can_have_are_refused(
    flags: list[str], is_cpu: bool, message: str
) -> None:
    """Each with what to do."""
    with pytest.raises(AgentKVError, match=message):
        with_tier(flags, is_cpu=is_cpu)
