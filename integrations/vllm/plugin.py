"""Entry point `vllm.general_plugins`: adds our policies to a stock vLLM.

vLLM calls `register` in every process of a server, possibly more than once. It wraps three methods
of EngineArgs (vllm/engine/arg_utils.py, 0.32.0): `add_cli_args` offers our names for
`--scheduling-policy` and our defaults, `from_cli_args` reads them, and `create_engine_config` turns
one of our names into `fcfs` plus our scheduler class. `fcfs` and `priority` stay untouched, unless
the environment variable AGENTKV_POLICY names a policy for engines that are left at the default;
AGENTKV_SETTINGS holds the settings of engines that are given none.
"""

from __future__ import annotations

import functools
import json
import os
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from typing import Any

from agentkv.errors import AgentKVError, SettingsError, SetupError, not_among
from agentkv.named_classes import absolute_name
from agentkv.policies.names import (
    CONFIG_KEY,
    PARSER_KEY,
    STOCK_POLICIES,
    is_policy_name,
    policy_names,
    read_settings,
)
from agentkv.policies.settings import Settings

from .clients import ADMIN_KEY_VARIABLE, names_by_key
from .server_policy import FRONT_END_KEY
from .versions import OLDEST, is_too_old, missing_names, version_problem

SCHEDULER = "agentkv.integrations.vllm.engine.scheduler.make_scheduler"
MIDDLEWARE = "agentkv.integrations.vllm.api.middleware.AgentKVMiddleware"
RUN_OUTPUT_FLAG = "--run-output-dir"
FRONT_END_FLAG = "--agentkv-front-end"
POLICY_VARIABLE = "AGENTKV_POLICY"
SETTINGS_VARIABLE = "AGENTKV_SETTINGS"


def check_vllm() -> None:
    """Raise SetupError if vLLM is too old or lacks names we need; warn if newer."""
    import vllm
    from vllm.logger import init_logger

    problem = version_problem(vllm.__version__)
    if is_too_old(vllm.__version__):
        raise SetupError(
            f"{problem}: install vllm>={OLDEST[0]}.{OLDEST[1]}, or use --scheduling-policy fcfs"
        )
    from .engine import seam

    missing = missing_names(seam.CONTRACT)
    if missing:
        raise SetupError(
            f"vLLM {vllm.__version__} lacks {', '.join(missing)}: install a vLLM that agentkv "
            "supports, or use --scheduling-policy fcfs"
        )
    if problem is not None:
        init_logger(__name__).warning(
            "%s; it has all the names that agentkv builds on, so the server starts", problem
        )


def register() -> None:
    """Wrap EngineArgs and the engine once in this process."""
    import vllm
    from vllm.engine.arg_utils import EngineArgs

    if hasattr(EngineArgs, "agentkv_is_registered"):
        return
    EngineArgs.agentkv_is_registered = True
    _wrap_engine_args(EngineArgs)
    if is_too_old(vllm.__version__):
        return  # stock policies still work; create_engine_config refuses ours
    from .api.engine_client import served_client
    from .engine import seam
    from .front_end import seam as front_end

    front_end.install(lambda: served_client.get() or "")
    if not missing_names(seam.CONTRACT):
        from .api import balancer, engine_side

        balancer.install()
        seam.add_stats_field()
        seam.install_engine_hooks(engine_side.call, _attach)


def _attach(engine: Any) -> None:
    attach = getattr(engine.scheduler, "attach", None)
    if attach is not None:
        attach(engine)


def _wrap_engine_args(engine_args: Any) -> None:
    add_cli_args = engine_args.add_cli_args
    from_cli_args = engine_args.from_cli_args.__func__
    create_engine_config = engine_args.create_engine_config

    @functools.wraps(add_cli_args)
    def add_cli_args_with_policies(parser: Any) -> Any:
        parser = add_cli_args(parser)
        add_flags(parser)
        return parser

    @functools.wraps(from_cli_args)
    def from_cli_args_with_ours(cls: Any, args: Any) -> Any:
        made = from_cli_args(cls, args)
        policy = policy_asked_for(made)
        # the API server reads it from `args`, after this
        if getattr(args, "enable_prompt_tokens_details", False) is None:
            args.enable_prompt_tokens_details = policy is not None
        mib = getattr(args, "agentkv_front_end", None)
        if mib is not None:
            _add_setting(made, FRONT_END_KEY, mib)
        if policy is not None:
            _add_keys(args, read_settings(_given_settings(made), policy=policy))
            if getattr(args, "enable_auto_tool_choice", False):
                parser = [args.tool_call_parser, args.tool_parser_plugin]
                made.additional_config = {**made.additional_config, PARSER_KEY: parser}
            folder = getattr(args, "run_output_dir", None)
            if folder is not None:
                _add_setting(made, "run_output_dir", folder)
        return made

    @functools.wraps(create_engine_config)
    def create_engine_config_for_policy(self: Any, *args: Any, **kwargs: Any) -> Any:
        from .front_end.seam import FrontEnd

        FrontEnd.has_series = not getattr(self, "disable_log_stats", False)
        policy = policy_asked_for(self)
        create = functools.partial(create_engine_config, self, *args, **kwargs)
        return create() if policy is None else _create_config(self, policy, create)

    engine_args.add_cli_args = staticmethod(add_cli_args_with_policies)
    engine_args.from_cli_args = classmethod(from_cli_args_with_ours)
    engine_args.create_engine_config = create_engine_config_for_policy


def _create_config(engine_args: Any, policy: str, create: Callable[[], Any]) -> Any:
    """Let vLLM make the configuration of an engine with our scheduler, and check both."""
    check_vllm()
    scheduler = engine_args.scheduler_cls
    if scheduler is not None:
        raise AgentKVError(
            f"--scheduler-cls {scheduler} and --scheduling-policy {policy} both name a scheduler: "
            "give one of them"
        )
    settings = _given_settings(engine_args)
    read_settings(settings, policy=policy)  # refuses wrong settings here, before the engine starts
    given = (engine_args.scheduling_policy, engine_args.additional_config)
    engine_args.scheduling_policy, engine_args.scheduler_cls = "fcfs", SCHEDULER
    engine_args.additional_config = _with(engine_args, {**(settings or {}), "policy": policy})
    is_off_by_flag = engine_args.enable_prefix_caching is False  # later it is vLLM's own choice
    try:
        config = create()
    finally:
        engine_args.scheduling_policy, engine_args.additional_config = given
        engine_args.scheduler_cls = None
    if not config.cache_config.enable_prefix_caching:
        added = "vLLM turns it off for such a model: add --enable-prefix-caching"
        advice = "remove --no-enable-prefix-caching" if is_off_by_flag else added
        raise AgentKVError(
            f"--scheduling-policy {policy} keeps the prefix cache warm, but prefix caching is "
            f"off: {advice}, or use --scheduling-policy fcfs"
        )
    from .in_process import tag_engines_of_this_process
    from .watch.prometheus import add_stat_logger

    add_stat_logger()
    tag_engines_of_this_process()
    return config


def _with(engine_args: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the additional configuration, with these settings as ours."""
    return {**engine_args.additional_config, CONFIG_KEY: settings}


def _add_setting(engine_args: Any, name: str, value: Any) -> None:
    given = _given_settings(engine_args) or {}
    engine_args.additional_config = _with(engine_args, {**given, name: value})


def _add_keys(args: Any, settings: Settings) -> None:
    """Add the admin key and those of named clients to the API keys, which vLLM reads from `args`
    after this.

    Source: vllm/entrypoints/serve/middleware/register.py (0.31 to 0.33).
    """
    if not hasattr(args, "api_key"):
        return
    admin_key, names = os.environ.get(ADMIN_KEY_VARIABLE), names_by_key()
    given = [key for key in (args.api_key or [os.environ.get("VLLM_API_KEY")]) if key]
    if admin_key and not given and not names:
        raise AgentKVError(
            f"{ADMIN_KEY_VARIABLE} is given, but no --api-key: without keys everybody sees all "
            "jobs. Give each client a key, or leave the admin key out"
        )
    if settings.client_header is not None and (given or names):
        raise SettingsError(
            f"'client_header': got {settings.client_header!r}, and the server has API keys, by "
            "which clients are known: leave out the one or the others"
        )
    added = [key for key in (*names, admin_key) if key and key not in given]
    if added:
        args.api_key = [*given, *added]


def policy_asked_for(engine_args: Any) -> str | None:
    """Return our policy for an engine, by its flag or else by the environment; None: stock.

    Raises SetupError for a variable that names no policy; vLLM itself refuses a wrong flag.
    """
    policy = str(engine_args.scheduling_policy)
    if policy == "fcfs" and engine_args.scheduler_cls is None:
        policy = os.environ.get(POLICY_VARIABLE) or policy
        if policy not in STOCK_POLICIES and not is_policy_name(policy):
            known = (*STOCK_POLICIES, *policy_names())
            allowed = ", ".join((*known, "FILE.py:CLASS and MODULE:CLASS"))
            raise SetupError(f"{POLICY_VARIABLE}: {not_among(policy, known, allowed)}")
    return absolute_name(policy) if is_policy_name(policy) else None


class _Choices(list[str]):
    """The values of `--scheduling-policy`: the listed ones, and a class in a file or module."""

    def __contains__(self, value: object) -> bool:
        return super().__contains__(value) or (isinstance(value, str) and is_policy_name(value))


def _given_settings(engine_args: Any) -> Any:
    """Return the settings of `--additional-config`, else of AGENTKV_SETTINGS, or None."""
    given, text = engine_args.additional_config.get(CONFIG_KEY), os.environ.get(SETTINGS_VARIABLE)
    if given is not None or not text:
        return given
    try:
        return json.loads(text)
    except ValueError as error:
        raise SettingsError(
            f"{SETTINGS_VARIABLE}: malformed JSON ({error}); a JSON object is expected, such as "
            "'{\"max_jobs\": 1000}'"
        ) from None


def add_flags(parser: ArgumentParser) -> None:
    """Extend vLLM's own flags on `parser`, and add two of our own.

    `--enable-prompt-tokens-details` gets the default None: cached tokens are reported under our
    policies, and as stock does under the others, unless the user says which.
    """
    for action in parser._actions:
        if "--scheduling-policy" in action.option_strings and action.choices is not None:
            new = [name for name in policy_names() if name not in list(action.choices)]
            action.choices = _Choices([*action.choices, *new])
        if "--middleware" in action.option_strings and MIDDLEWARE not in (action.default or []):
            action.default = [*(action.default or []), MIDDLEWARE]
        if "--enable-prompt-tokens-details" in action.option_strings:
            action.default = None
    if RUN_OUTPUT_FLAG not in parser._option_string_actions:
        parser.add_argument(
            RUN_OUTPUT_FLAG,
            metavar="DIR",
            default=None,
            help="agentkv: folder that gets the event log",
        )
        parser.add_argument(
            FRONT_END_FLAG,
            type=float,
            metavar="MIB",
            default=None,
            help="agentkv: encode each token of a conversation once, under any policy; keeps ids "
            "in at most MIB in each API server, 0 turns it off",
        )
