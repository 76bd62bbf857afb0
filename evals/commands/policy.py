"""`agentkv policy`: begin a scheduling policy of your own, and hold any policy to its promises.

    agentkv policy new mine.py
    agentkv policy check ./mine.py:Mine

`new` writes a template that runs as it is. `check` plays random schedules of agents (arrivals,
tools, aborts, releases, sub-agents, resets, rushes; tiny pools, some with a DRAM tier) under the
policy, on two engines with vLLM's real scheduler and in virtual time. For a promise that is broken
it prints the smallest schedule found. It needs the extra `testing`.
"""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentkv.command_line import (
    DONE,
    FAILED,
    add_json,
    command_parser,
    print_document,
    whole_number,
)
from agentkv.errors import InputError, how_to_install
from agentkv.policies.names import simulated_policy

from ..progress import progress
from ..rows import provenance, require_free, require_writable, write_whole

STOCK = "agentkv.policies:Policy"
"""The base class, which behaves as fcfs does."""

TEMPLATE = '''\
"""A scheduling policy. Every method that it leaves out behaves as stock vLLM does."""

from agentkv.policies import TTL, Policy, RestoreCost, Settings


class {name}Settings(Settings):
    """The settings of this policy, next to those that all policies have."""

    hold_s: float = 5.0


class {name}(Policy):
    """Holds the KV of each finished turn for `hold_s` seconds, while the job's tool runs."""

    settings_class = {name}Settings
    settings: {name}Settings

    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        """Seconds for which a turn that has just finished is held, and why."""
        return TTL(self.settings.hold_s, "the same for every turn")

    # What else a policy can be asked; `help(agentkv.policies.Policy)` says what each must answer:
    #   decide(command, cost, prediction)         how long to hold, once the tool is known
    #   pins_that_yield(pins, request)            which held KV is given up when memory is short
    #   rank(turn, *, is_preempted, is_pinned)    the order of waiting turns
    #   victim_rank(turn), sorts_running()        who is preempted
    #   why_hold_back(request), why_wait(turn)    which new jobs, and which returning turns, wait
    #   max_overtakes(num_turns), pressure_s(cost), held_tokens(cost), offloaded_tokens(turn)
    #   turn_finished(turn, served_s), job_ended(job), tick()    what happens
    # It may look at `self.engine` (now_s, num_free_blocks, jobs, turns, pins) and `self.settings`.
'''


def main(argv: Sequence[str]) -> int:
    """0: written, or every promise is kept. 1: one is broken. Raises InputError for bad usage."""
    options = _parser().parse_args(argv)
    if options.action == "new":
        return _new(options.path, force=options.force)
    return _check(options)


def _new(path: Path, *, force: bool) -> int:
    if path.suffix != ".py":
        raise InputError(f"FILE: got {str(path)!r}, allowed is a name that ends in .py")
    require_free(path, force=force, flag="name")
    require_writable(path, force=True)
    name = class_name(path)
    write_whole(path, TEMPLATE.format(name=name))
    target = f"{path if path.is_absolute() else f'./{path}'}:{name}"
    print(f"written {path}; next: agentkv policy check {target}")
    return DONE


def class_name(path: Path) -> str:
    """The name of the class in a new file: my_rule.py has MyRule."""
    name = "".join(part[:1].upper() + part[1:] for part in re.split(r"\W|_", path.stem))
    return name if name.isidentifier() else f"Policy{name}"


def _check(options: argparse.Namespace) -> int:
    label, settings = read_target(options.target)
    logging.getLogger("vllm.triton_utils").setLevel(logging.ERROR)  # that it has none for CPUs
    try:
        from agentkv.evals.simulator.vllm_scheduler import VLLM_VERSION, quiet_vllm
        from agentkv.testing.policy_play import PROMISES
        from agentkv.testing.promises import check_promises
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        hint = how_to_install("testing")
        raise InputError(f"the check makes its schedules with hypothesis: {hint}") from None
    quiet_vllm()
    with progress("policy check", options.examples, "schedules") as show:
        result = check_promises(
            settings, seed_number=options.seed, num_schedules=options.examples, show=show
        )
    document = {
        **provenance(),
        "policy": label,
        "vllm": VLLM_VERSION,
        "seed": options.seed,
        "schedules": result.num_schedules,
        "turns": result.num_turns,
        "answers": result.num_answers,
        "slowest_answer_ms": round(1000 * result.slowest_s, 3),
        "broken": [
            {"promise": each.promise, "what": each.what, "schedule": list(each.schedule)}
            for each in result.broken.values()
        ],
    }
    if not options.json:
        print("\n".join(_report(document, PROMISES)))
    print_document(document, is_asked_for=options.json)
    return FAILED if result.broken else DONE


def _report(document: dict[str, Any], promises: Sequence[str]) -> list[str]:
    broken = {each["promise"]: each for each in document["broken"]}
    lines = [
        f"{document['policy']}: {document['schedules']} schedules, {document['turns']} turns, "
        f"{document['answers']} answers on vLLM {document['vllm']}'s scheduler, "
        f"seed {document['seed']}"
    ]
    lines += [f"  {'BROKEN' if each in broken else 'kept':8}{each}" for each in promises]
    for promise, found in broken.items():
        shape, *events = found["schedule"]
        lines += ["", f"{promise}? {found['what']}"]
        lines += ["  the smallest schedule that shows it:", f"    {shape}"]
        lines += [f"    {number}. {event}" for number, event in enumerate(events, start=1)]
    return lines


def read_target(text: str) -> tuple[str, dict[str, Any]]:
    """Label and settings of the policy of a name; raises InputError for an unknown one."""
    choice = simulated_policy(text)
    if choice.has_offload or choice.is_infinite:
        raise InputError(
            f"TARGET: got {text!r}, allowed is a policy without +offload and @infinite"
        )
    return choice.name, choice.engine_settings or {"policy": STOCK}


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("policy", __doc__)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    new = actions.add_parser("new", help="write a template that runs as it is")
    new.add_argument("path", type=Path, metavar="FILE.py")
    new.add_argument("--force", action="store_true", help="overwrite FILE.py")
    check = actions.add_parser("check", help="hold a policy to its promises")
    target = "a policy as `agentkv simulate --policy` takes it: NAME, FILE.py:CLASS, MODULE:CLASS"
    check.add_argument("target", metavar="TARGET", help=f"{target}; settings may follow as JSON")
    check.add_argument("--seed", type=int, default=0, help="of the schedules (default %(default)s)")
    examples = "random schedules to play (default %(default)s)"
    check.add_argument("--examples", type=whole_number(1), default=100, metavar="N", help=examples)
    add_json(check)
    return parser
