"""The demo model behind guided decoding and SWE-bench; what it says is no fact of these tests."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentkv.evals.swebench import command as swebench
from agentkv.server.process import ServerProcess
from tests.conftest import PRICE_S
from tests.server.chat import WORDS, agentkv_get, chat, wait_for

pytestmark = pytest.mark.server


@pytest.mark.parametrize(
    ("command", "key", "is_held"),
    [("ls -la", "ls", True), ("pip install torch", "pip install", False)],
)
def test_a_context_is_held_by_the_price_of_the_tool(
    demo_server: ServerProcess, command: str, key: str, is_held: bool
) -> None:
    """Read from the reply, which guided decoding makes the model say.

    The first test of its server, which measures later what computing is worth.
    """
    server = demo_server
    job_id = command.split()[0]
    choice = {"choice": [f"```bash\n{command}\n```"]}
    chat(
        server,
        WORDS,
        model="demo",
        job_id=job_id,
        max_tokens=64,
        ignore_eos=False,
        structured_outputs=choice,
    )
    wait_for(lambda: bool(events_of(server, job_id, "decision")))
    (decision,) = events_of(server, job_id, "decision")
    assert decision["command"] == key
    assert (decision["ttl_s"] > 0) == is_held
    assert f"coming back is worth {PRICE_S:.2f} s of a pin" in decision["reason"]
    chat(server, WORDS, model="demo", job_id=job_id, is_last_step=True)


def events_of(server: ServerProcess, job_id: str, name: str) -> list[dict[str, Any]]:
    events = agentkv_get(server, "timestamps")["jobs"].get(job_id, [])
    return [event for event in events if event["event"] == name]


@pytest.mark.long
def test_two_instances_are_played_graded_and_reported(
    tmp_path: Path, demo_server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is a job of several turns whose context is found again, and that is released."""
    out = tmp_path / "run"
    url = demo_server.base_url
    flags = ["--model", "demo", "--base-url", url, "--slice", "0:2", "--step-limit", "4"]
    status = swebench.main(["demo", *flags, "--out", str(out), "--json"])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    document = json.loads(captured.out)
    assert document["instances"] == 2
    assert document["policy"] == "agentkv"
    assert sum(document[name] for name in ("resolved", "unresolved", "empty")) == 2
    run = json.loads((out / "report.json").read_text())["runs"][0]
    assert run["completed"] == 2
    assert run["turns_mean"] > 1
    assert run["hit_rate"] > 0.5
    jobs = httpx.get(f"{url}/agentkv/jobs").json()
    assert not [job for job in jobs["jobs"] if job["job_id"].startswith("agentkv__")]
