"""The public functions give the same values as before, and the client sends the same requests."""

from __future__ import annotations

import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import openai

import agentkv
from agentkv.testing import ScriptedReply, ScriptedServer, forget_servers
from tests.golden.harness import Golden, digest, masked

TESTS = Path(__file__).parents[1]

COMMANDS = (
    *("ls -la", "cd /testbed && python -m pytest -q tests/test_a.py 2>&1 | tail -20"),
    *("pip install -U torch", "git -C /repo --no-pager log --oneline | head"),
    *("git commit -am 'a; b && c'", "sudo -u bob -E apt-get install -y build-essential"),
    *("A=1 timeout 30 make -j4 all", "sleep 12", "sleep 2 && echo done"),
    "for i in 1 2 3; do curl -s http://localhost:8000/$i; sleep 1; done",
    "cat > a.py <<'EOF'\nprint(1)\nEOF\npython a.py",
    *("docker compose up -d && docker logs -f web", "npm run test -- --watch"),
    *("grep -rn 'def f' src | wc -l", "find . -name '*.py' -exec sed -i 's/a/b/' {} +"),
    *("python3 scripts/train.py --lr 1 &", "nohup ./server > log 2>&1 & echo $!"),
    "if [ -f x ]; then cargo build --release; else true; fi",
    *("echo $(date) | xargs -n1 ssh host uptime", "frobnicate --all"),
    *("while true; do sleep 5; done", "bash -c 'tox -e py311'", "unbalanced 'quote", ""),
)
"""Commands that agents run, and some that no shell would take."""

HISTORY = (
    *(("ls -la", 0.02), ("pip install -U torch", 45.0)),
    *(("python -m pytest -q tests/test_a.py", 3.0), ("frobnicate --all", 0.05)),
    *(("frobnicate --all", 60.0), ("make -j4 all", 25.0)),
    *(("python -m pytest -q tests/test_b.py", 4.0), ("ls src", 0.01), ("git status", 0.1)),
    *(("python -m pytest -q tests/test_a.py", 3.5), ("frobnicate --some", 55.0)),
    ("cargo build --release", 80.0),
) * 3
"""What a predictor learns from, in this order."""


def _replies() -> list[tuple[str, str]]:
    paths = sorted(TESTS.glob("**/cases/*.toml"))
    return [
        (f"{path.stem}: {case['id']}", case["reply"])
        for path in paths
        for case in tomllib.loads(path.read_text(encoding="utf-8")).get("case", ())
    ]


def test_tool_calls_are_read_as_before(golden: Golden) -> None:
    """Every reply of the corpus gives the same calls, whole and cut off in the middle."""
    replies = _replies()
    assert len(replies) > 100
    found = {}
    for name, reply in replies:
        parts = (reply, reply[: len(reply) // 2], reply[len(reply) // 3 :])
        found[name] = digest([[asdict(call) for call in _calls(part)] for part in parts])
    golden.check("tool calls", found)


def _calls(reply: str) -> Any:
    return agentkv.parse_tool_calls(reply)


def test_commands_are_analysed_as_before(golden: Golden) -> None:
    """Programs, keys and features of a command are the same."""
    found = {command: _set_fields(asdict(agentkv.analyze_command(command))) for command in COMMANDS}
    golden.check("commands", found)


def _set_fields(value: Any) -> Any:
    """The value without fields that are None, False, 0 or empty."""
    if isinstance(value, dict):
        return {name: _set_fields(field) for name, field in value.items() if field}
    if isinstance(value, list | tuple):
        return [_set_fields(item) for item in value]
    return value


def test_durations_are_predicted_as_before(golden: Golden) -> None:
    """Every user's kind of predictor answers the same, before and after it learned."""
    for kind in ("default", "context_serve"):
        predictor = agentkv.DurationPredictor(kind, seed=0)
        before = {command: _numbers(predictor.predict(command)) for command in COMMANDS}
        for command, duration_s in HISTORY:
            predictor.observe(command, duration_s)
        predictor.observe("sleep 100", 30.0, censored=True)
        after = {command: _numbers(predictor.predict(command)) for command in COMMANDS}
        golden.check(f"durations, {kind}, new", before)
        golden.check(f"durations, {kind}, learned", after)


def _numbers(prediction: agentkv.Prediction) -> Any:
    numbers = (prediction.p50_s, prediction.p90_s, prediction.ttl_s, prediction.p_over(2.0))
    return masked([prediction.speed, prediction.source, *numbers])


def test_a_session_sends_what_it_sent(golden: Golden) -> None:
    """Requests, tool events and the summary of a job are the same, with and without the plugin."""
    call = {"name": "bash", "arguments": '{"command": "make test"}'}
    replies = (
        ScriptedReply("```bash\npytest -q\n```"),
        ScriptedReply("", tool_calls=[{"id": "c1", "type": "function", "function": call}]),
        ScriptedReply("all done", prompt_tokens=None),
    )
    for has_plugin in (True, False):
        forget_servers()
        with ScriptedServer(replies, has_plugin=has_plugin) as server:
            summary = _play(server.base_url)
            assert agentkv.flush(timeout_s=20)
            turns = [[request.path, request.body] for request in server.turns]
            events = server.tool_events
            released = server.released
        found = {"turns": turns, "events": events, "released": released, "summary": summary}
        name = f"a session, {'with' if has_plugin else 'without'} the plugin"
        golden.check(name, masked(found, r".*_s"))


def _play(base_url: str) -> Any:
    http_client = openai.DefaultHttpxClient(verify=False)
    with openai.OpenAI(base_url=base_url, api_key="key", http_client=http_client) as client:
        with agentkv.session(client, job_id="golden/job 1") as job:
            messages: Any = [{"role": "user", "content": "fix it"}]
            for tool in ("pytest -q", "make test"):
                job.client.chat.completions.create(model="scripted", messages=messages)
                # an event that is still queued when its tool ends may be left out
                with job.tool(tool):
                    assert agentkv.flush(timeout_s=20)
                assert agentkv.flush(timeout_s=20)
            job.client.chat.completions.create(model="scripted", messages=messages)
            job.client.completions.create(model="scripted", prompt="and?")
        return asdict(job.summary())


def test_the_public_names_are_as_before(golden: Golden) -> None:
    """`agentkv` exports the same names."""
    golden.check("names", sorted(agentkv.__all__))
