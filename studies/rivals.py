"""`agentkv bench` next to somebody else's scheduling: a server's flags, or a proxy in front of it.

    python -m studies.rivals --rival NAME='--scheduler-cls package.Class' --policy agentkv
    python -m studies.rivals --rival-proxy NAME='router --port {port} --to {server}'

Both flags can be repeated, and a rival may have both; all other flags go to `agentkv bench`, which
starts the servers. FLAGS and COMMAND are split as a shell does. Every turn that a rival gets
carries `vllm_xargs.agentic_context`, by which AgentInfer and vllm-router know a job: `program_id`
and `task_id`, both the job's id, and `expected_resume`, false on the job's last turn.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from agentkv.errors import AgentKVError, InputError
from agentkv.evals.commands import bench
from agentkv.evals.player.run import LoadOptions
from agentkv.evals.player.servers import READY_TIMEOUT_S, BenchPlan, Contestant
from agentkv.integrations.vllm.serve import value_of
from agentkv.policies.names import known_policies
from agentkv.server.process import HTTPProcess, free_port


@dataclass(frozen=True, slots=True)
class Rival:
    """A vLLM server with flags of its own, and a proxy in front of it if there is a command."""

    name: str
    server_flags: tuple[str, ...] = ()
    proxy: tuple[str, ...] = ()
    scheduling_policy: ClassVar[str] = "fcfs"
    """Unless the flags name another."""
    has_offload: ClassVar[bool] = False

    def flags(self) -> list[str]:
        return list(self.server_flags)

    def proxy_command(self, server_url: str, port: int) -> list[str]:
        """The proxy's command, with `{server}` and `{port}` filled in."""
        return [
            word.replace("{server}", server_url).replace("{port}", str(port)) for word in self.proxy
        ]


@dataclass(frozen=True)
class RivalPlan(BenchPlan):
    """A plan in which some policies are rivals."""

    def prepare(
        self,
        stack: ExitStack,
        policy: Contestant,
        processes: list[HTTPProcess],
        load: LoadOptions,
    ) -> LoadOptions:
        made = super().prepare(stack, policy, processes, load)
        if not isinstance(policy, Rival):
            return made
        if policy.proxy:
            port = free_port()
            command = policy.proxy_command(processes[0].root_url, port)
            log = processes[0].log_path.with_name("proxy.log")
            proxy = HTTPProcess(
                command,
                name=policy.name,
                port=port,
                log_path=log,
                ready_timeout_s=READY_TIMEOUT_S,
            )
            processes.append(stack.enter_context(proxy))
        config = {**load.config, "rival": asdict(policy)}
        turns_url = processes[-1].root_url
        return replace(made, turns_url=turns_url, request_fields=context_of, config=config)

    def settings(self, policy: Contestant | None) -> dict[str, Any]:
        rival = asdict(policy) if isinstance(policy, Rival) else None
        return {**super().settings(policy), "rival": rival}


def context_of(job_id: str, is_last: bool) -> Mapping[str, Any]:
    """What a rival's requests carry; stock vLLM ignores it.

    Source: agentinfer 0.2.0, scheduling/identity.py; vllm-router 0.1.17 reads the same field.
    """
    context = {"program_id": job_id, "task_id": job_id, "expected_resume": not is_last}
    return {"vllm_xargs": {"agentic_context": json.dumps(context)}}


def read_rivals(flags: Sequence[str], proxies: Sequence[str]) -> list[Rival]:
    """The rivals of `--rival NAME=FLAGS` and `--rival-proxy NAME=COMMAND`; a name may have both.

    Raises InputError if one cannot be read, has a policy's name, or lacks its package or command.
    """
    rivals: dict[str, Rival] = {}
    for flag, texts in (("--rival", flags), ("--rival-proxy", proxies)):
        for text in texts:
            name, mark, words = text.partition("=")
            if not mark or name in known_policies():
                raise InputError(f"{flag}: got {text!r}: write NAME=WORDS, with a name of its own")
            rival, split = rivals.get(name, Rival(name)), tuple(shlex.split(words))
            if flag == "--rival":
                package = (value_of(split, "--scheduler-cls") or "vllm").partition(".")[0]
                if importlib.util.find_spec(package) is None:
                    raise InputError(f"{flag} {name}: pip install --no-deps {package}")
                rivals[name] = replace(rival, server_flags=split)
            elif "{server}" not in words or "{port}" not in words:
                raise InputError(f"{flag} {name}: the command needs {{server}} and {{port}}")
            elif shutil.which(split[0]) is None:
                raise InputError(f"{flag} {name}: there is no command {split[0]!r}: install it")
            else:
                rivals[name] = replace(rival, proxy=split)
    return list(rivals.values())


def read_plan(argv: Sequence[str]) -> tuple[argparse.Namespace, RivalPlan]:
    """The flags of `agentkv bench`, and its plan with the rivals behind the policies."""
    parser = argparse.ArgumentParser(prog="studies.rivals", description=__doc__)
    parser.add_argument("--rival", action="append", default=[], metavar="NAME=FLAGS")
    parser.add_argument("--rival-proxy", action="append", default=[], metavar="NAME=COMMAND")
    cut = list(argv).index("--") if "--" in argv else len(argv)
    options, more = parser.parse_known_args(argv[:cut])
    rivals = read_rivals(options.rival, options.rival_proxy)
    bench_options, plan = bench.read_plan([*more, *argv[cut:]])
    values = vars(plan) | {"policies": (*plan.policies, *rivals)}
    return bench_options, RivalPlan(**values)


def main(argv: Sequence[str]) -> int:
    """The exit status of `agentkv bench`."""
    try:
        return bench.measure(*read_plan(argv))
    except AgentKVError as error:
        print(f"studies.rivals: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
