"""Runs mini-swe-agent's own tests with its classes and with ours, and compares test by test.

`make test-mini-swe`, with `MINI_SWE_SOURCE=FOLDER` for a checkout of its repository at the
installed version. Without one its source distribution is fetched. Where that holds none of FILES
(2.4.6 does not), this is said, and our own comparison of the classes runs in their place.

Exit status 0: every test ended alike, and ours were really used. 1: some did not; they are named.
The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

from comparison import Recorder, compare, report
from sources import MINI_SWE_VERSION, fetch_mini_swe

ROOT = Path(__file__).parents[2]

# Not tests/test_fire.py: it calls paid services.
FILES = (
    "tests/agents/test_default.py",
    "tests/models/test_litellm_model.py",
    "tests/models/test_litellm_textbased_model.py",
    "tests/models/test_format_error_response_persistence.py",
    "tests/models/test_truncation_finish_reason.py",
)
STAND_IN = "tests/agents/test_mini_swe_contract.py"
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "MSWEA_SILENT_STARTUP": "1"}


def replace(_: str, recorder: Recorder) -> None:
    """Put our agent and models in the place of mini-swe-agent's."""
    from minisweagent.agents import default
    from minisweagent.models import litellm_model, litellm_textbased_model

    from agentkv.agents.mini_swe import AgentKVAgent, AgentKVModel, AgentKVTextModel

    names: tuple[tuple[Any, str, Any], ...] = (
        (default, "DefaultAgent", AgentKVAgent),
        (litellm_model, "LitellmModel", AgentKVModel),
        (litellm_textbased_model, "LitellmTextbasedModel", AgentKVTextModel),
    )
    for module, name, ours in names:
        setattr(module, name, recorder.counted(ours))


def stand_in() -> dict[str, Any]:
    """Our own comparison of the classes, as one difference if it fails."""
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", STAND_IN], cwd=ROOT, check=False)
    differences = [f"{STAND_IN} failed"] if done.returncode else []
    return {"files": [], "stand_in": STAND_IN, "differences": differences}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path(".mini-swe"))
    parser.add_argument("--source", type=Path, help="a checkout of mini-swe-agent's repository")
    arguments = parser.parse_args()
    cache = arguments.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    source = arguments.source.resolve() if arguments.source else fetch_mini_swe(cache)
    files = [name for name in FILES if (source / name).is_file()]
    if files:
        found = compare(
            *("compare_mini_swe", ["ours"], files),
            source=source,
            cache=cache,
            environment=OFFLINE,
        )
    else:
        print(f"{source.name} holds none of mini-swe-agent's tests for these classes")
        found = stand_in()
    return report({"mini_swe_agent": MINI_SWE_VERSION, "files": files, **found})


if __name__ == "__main__":
    sys.exit(main())
