"""The files for Kubernetes parse, fit together, and name agentkv's header and policies."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentkv.policies.names import is_policy_name
from agentkv.protocol import SESSION_HEADER

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "integrations" / "kubernetes"
METRICS = ROOT / "docs" / "reference" / "metrics.md"


def read(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((FOLDER / name).read_text(encoding="utf-8")))


def policy_in(args: list[str]) -> str:
    return args[args.index("--scheduling-policy") + 1]


def test_production_stack_is_sticky_and_keeps_the_prefix_cache() -> None:
    """The chart turns prefix caching off unless the values say otherwise."""
    values = read("production-stack.values.yaml")
    assert values["routerSpec"]["routingLogic"] == "session"
    assert values["routerSpec"]["sessionKey"] == SESSION_HEADER.lower()
    (model,) = values["servingEngineSpec"]["modelSpec"]
    assert model["vllmConfig"]["enablePrefixCaching"] is True
    assert is_policy_name(policy_in(model["vllmConfig"]["extraArgs"]))


def test_llm_d_keeps_a_job_on_its_server() -> None:
    """The endpoint picker's configuration names only plugins that it has, and reads our header."""
    epp = read("llm-d/router.values.yaml")["router"]["epp"]
    config = yaml.safe_load(epp["pluginsCustomConfig"][epp["pluginsConfigFile"]])
    plugins = {each["type"]: each.get("parameters") for each in config["plugins"]}
    assert plugins["session-id-producer"]["headerName"] == SESSION_HEADER.lower()
    (profile,) = config["schedulingProfiles"]
    used = [each["pluginRef"] for each in profile["plugins"]]
    used += (parsers := [each["pluginRef"] for each in config["requestHandler"]["parsers"]])
    assert [name for name in used if name not in plugins] == []
    assert used[0] == "session-affinity-filter"
    assert parsers[-1] == "passthrough-parser", "the first parser that fits is taken"


def test_llm_d_scores_memory_without_pins() -> None:
    """The scorer of KV memory reads the gauge that leaves out what pins alone hold."""
    epp = read("llm-d/router.values.yaml")["router"]["epp"]
    config = yaml.safe_load(epp["pluginsCustomConfig"][epp["pluginsConfigFile"]])
    (extractor,) = (each for each in config["plugins"] if each["type"] == "core-metrics-extractor")
    (engine,) = extractor["parameters"]["engineConfigs"]
    assert engine["kvUsageSpec"] == "agentkv:running_kv_perc"
    assert "| `running_kv_perc` | gauge |" in METRICS.read_text(encoding="utf-8")


def test_llm_d_finds_its_servers() -> None:
    """The labels that the router looks for are those of the servers' pods."""
    wanted = read("llm-d/router.values.yaml")["router"]["modelServers"]["matchLabels"]
    deployment = read("llm-d/modelserver.yaml")["spec"]
    assert deployment["template"]["metadata"]["labels"] == wanted
    assert deployment["selector"]["matchLabels"] == wanted
    (container,) = deployment["template"]["spec"]["containers"]
    assert is_policy_name(policy_in(container["args"]))


@pytest.mark.fleet
def test_kubernetes_accepts_the_servers() -> None:
    """The manifest fits the schemas of Kubernetes, without an unknown field."""
    program = shutil.which("kubernetes-validate")
    if program is None:
        pytest.skip("kubernetes-validate is not installed: make test-fleet installs it")
    command = [program, "--strict", str(FOLDER / "llm-d" / "modelserver.yaml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
