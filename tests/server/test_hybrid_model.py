"""A real model with attention and recurrent layers, of random weights: what it says and hits."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentkv.integrations.vllm.doctor.hits import check_hits
from studies.hybrid.__main__ import write_model
from tests.conftest import ServerPool

FLAGS = ["--jobs=4", "--turns=3", "--tool-s=0.2"]
SHORT, ROOMY = "--blocks=16", "--blocks=60"
"""Too little for all four at once, and enough; less than 16 is refused for the model's length."""
ROUNDING = 0.02
"""Of a log probability: other chunks of a prompt move it by 0.008, another job's state by 0.1."""
SERVER = (
    *("--enable-prefix-caching", "--mamba-cache-mode", "align", "--dtype", "bfloat16"),
    *("--block-size", "640"),
)


@pytest.fixture(scope="session")
def hybrid_model_dir(demo_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Qwen3-Next of the study with the demo model's tokenizer."""
    folder = tmp_path_factory.mktemp("hybrid-model")
    write_model(folder)
    for path in demo_model_dir.glob("tokenizer*"):
        shutil.copy(path, folder)
    return folder


def played(process: subprocess.Popen[str]) -> dict[str, Any]:
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    answer: dict[str, Any] = json.loads(text.splitlines()[-1])
    return answer


@pytest.mark.server
@pytest.mark.parametrize(
    "policy",
    [
        "agentkv",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("continuum", "context_serve")),
    ],
)
def test_a_policy_keeps_the_output_of_a_hybrid_model(policy: str, hybrid_model_dir: Path) -> None:
    """No state is another prompt's, which would say something else; and what was held is hit."""
    began = [
        subprocess.Popen(
            [sys.executable, "-m", "studies.hybrid", name, "--model", hybrid_model_dir, *flags],
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, *flags in (("fcfs", ROOMY, *FLAGS), (policy, SHORT, *FLAGS))
    ]
    stock, ours = map(played, began)
    # a preempted prompt is cut into other chunks, by which stock changes replies as well
    changed = {turn.partition("-")[0] for turn in ours["preempted"]}
    kept = [turn for turn in ours["outputs"] if turn.partition("-")[0] not in changed]
    assert len(kept) >= 6
    for turn in kept:
        (tokens, chances), expected = ours["outputs"][turn], stock["outputs"][turn]
        assert tokens == expected[0]
        assert chances == pytest.approx(expected[1], abs=ROUNDING)
    assert ours["hit_share_of_later_turns"] > 0
    # tokens that the policy held and that were computed again all the same
    assert not ours["recomputed_tokens"].get("other")


class ChangesAReply(httpx.HTTPTransport):
    """Passes requests on, and changes a token of the second turn's reply, as a wrong state may."""

    num_replies = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        if request.url.path != "/v1/completions":
            return answer
        self.num_replies += 1
        if self.num_replies != 2:
            return answer
        document = json.loads(answer.read())
        document["choices"][0]["logprobs"]["tokens"][4] = "token_id:0"
        return httpx.Response(200, json=document)


@pytest.mark.server
def test_doctor_compares_replies_with_and_without_hits(
    server_pool: ServerPool, hybrid_model_dir: Path
) -> None:
    """Hits that change nothing pass, one that does is reported; no job or lesson is left."""
    server = server_pool.get(hybrid_model_dir, *SERVER, policy="agentkv")
    (found,) = check_hits(server.base_url, None)
    assert (found.status, found.advice) == ("OK", None)
    assert "hits of 640 and 1,280 tokens changed no token of a reply" in found.seen
    (told,) = check_hits(server.base_url, None, transport=ChangesAReply())
    assert told.status == "WARN"
    assert "a hit of 640 tokens changed turn 2: token 5 differs, and is not among" in told.seen
    assert "vllm#47194" in (told.advice or "")
    with httpx.Client(base_url=server.root_url) as client:
        assert client.get("/v1/agentkv/jobs").json()["jobs"] == []
        assert client.get("/v1/agentkv/timestamps").json()["jobs"] == {}
        stats = client.get("/v1/agentkv/stats").json()
    assert stats["learned"]["tool_durations"] == 0
