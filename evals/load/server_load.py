"""Puts a workload on a server and gives back what happened: the measurement behind `bench`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from agentkv.client.server import forget_servers

from .conversations import LiveConversation, ReplayConversation, Windows
from .job_player import OnTurn
from .load_driver import Driven, LoadDriver, MakeConversation
from .load_server import LoadServer, LoadServerError, LoadServerFacts, preemptions_between
from .outcomes import JobOutcome, RunOutcome, TurnOutcome
from .plans import JobPlan, Workload, WorkloadError
from .run_files import RunWriter, row_facts
from .run_metadata import run_metadata
from .sample_text import sample_text, sections
from .server_policies import STOCK_POLICIES, check_policy, server_policy

MODES = ("replay", "live")


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a workload is put on a server; `policy` None is whatever the server runs."""

    base_url: str
    policy: str | None = None
    model: str | None = None
    api_key: str | None = None
    mode: str = "replay"
    request_timeout_s: float = 600.0
    limit_s: float | None = None
    max_output_tokens: int = 512
    out: Path | None = None
    force: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)


def load_server(
    workload: Workload, described: Mapping[str, Any], options: LoadOptions, *, repeat: int = 0
) -> tuple[RunOutcome, str | None]:
    """The run, and why it ended early if it did; its files are in `options.out`, if given.

    Raises LoadServerError, PolicyError, WorkloadError, RunFilesError or OSError before anything is
    sent; later troubles end the run, and are told with what was measured.
    """
    forget_servers()  # another server may have been at this address
    with LoadServer(options.base_url, api_key=options.api_key) as server:
        facts = server.facts(options.model)
        policy = options.policy or _running_policy(facts)
        check_policy(server_policy(policy), facts.info)
        _check_lengths(workload, facts)
        metadata = run_metadata(facts, options.config, mode=options.mode, repeat=repeat)
        conversation = _conversation(workload, options, server, facts)
        before = server.counters()
        with _files(options, row_facts(policy, described, metadata)) as files:
            on_turn = _no_rows if files is None else partial(_keep_row, files)
            driven = _driver(workload, conversation, options, server, on_turn).drive(policy)
            after, record = _counters_if_alive(server), server.timestamps()
            counters = {
                "before": before,
                "after": after,
                "preemptions": preemptions_between(before, after),
            }
            run = RunOutcome(policy, described, driven.jobs, counters, metadata | _notes(driven))
            return run, _finish(files, run, record, driven.stopped_because)


def _running_policy(facts: LoadServerFacts) -> str:
    return STOCK_POLICIES[0] if facts.info is None else str(facts.info["policy"])


def _check_lengths(workload: Workload, facts: LoadServerFacts) -> None:
    limit = facts.max_context_tokens
    longest = max(workload.jobs, key=lambda job: job.context_tokens)
    if limit is not None and longest.context_tokens > limit:
        raise WorkloadError(
            f"job {longest.job_id} has {longest.context_tokens} tokens in the end, the server "
            f"takes {limit}: give --max-context-tokens {limit} (or --turns, --token-scale), or "
            "the server a larger --max-model-len"
        )


def _conversation(
    workload: Workload, options: LoadOptions, server: LoadServer, facts: LoadServerFacts
) -> MakeConversation:
    """What makes each job's conversation; tokenizes the sample text where token ids are sent."""
    if options.mode == "live":
        texts = Windows(sample_text(), workload.seed)

        def live(job: JobPlan, run_id: str) -> LiveConversation:
            max_output_tokens = options.max_output_tokens
            return LiveConversation(
                job, model=facts.model, windows=texts, max_output_tokens=max_output_tokens
            )

        return live
    tokenized = server.tokenize(facts.model, list(sections()))
    tokens = Windows([token for section in tokenized for token in section], workload.seed)

    def replay(job: JobPlan, run_id: str) -> ReplayConversation:
        return ReplayConversation(job, model=facts.model, windows=tokens, run_id=run_id)

    return replay


def _driver(
    workload: Workload,
    conversation: MakeConversation,
    options: LoadOptions,
    server: LoadServer,
    on_turn: OnTurn,
) -> LoadDriver:
    return LoadDriver(
        workload,
        conversation,
        root_url=server.root_url,
        api_key=options.api_key,
        request_timeout_s=options.request_timeout_s,
        limit_s=options.limit_s,
        on_turn=on_turn,
    )


def _counters_if_alive(server: LoadServer) -> dict[str, Any]:
    try:
        return server.counters()
    except LoadServerError as error:
        return {"error": str(error)}


def _notes(driven: Driven) -> dict[str, Any]:
    return {
        "stopped_because": driven.stopped_because,
        "max_arrival_lag_s": driven.max_lag_s,
        "reports_cached_tokens": driven.reports_cached_tokens,
    }


@contextmanager
def _files(options: LoadOptions, facts: Mapping[str, Any]) -> Iterator[RunWriter | None]:
    if options.out is None:
        yield None
        return
    with RunWriter(options.out, facts, force=options.force) as files:
        yield files


def _keep_row(files: RunWriter, job: JobOutcome, turn: TurnOutcome, is_last: bool) -> None:
    files.add_turn(job, turn, is_last=is_last)


def _no_rows(job: JobOutcome, turn: TurnOutcome, is_last: bool) -> None:
    pass


def _finish(
    files: RunWriter | None, run: RunOutcome, record: Mapping[str, Any] | None, reason: str | None
) -> str | None:
    """Write the run's last files; gives the reason why the run, or this, broke off."""
    if files is None:
        return reason
    try:
        if record is not None:
            files.add_record(record)
        files.finish(run)
    except OSError as error:
        return reason or f"the run could not be written: {error}"
    return reason
