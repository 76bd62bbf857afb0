"""The plugin adds its policies to a stock vLLM; no engine is started."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

from agentkv.errors import AgentKVError, SettingsError, SetupError
from agentkv.integrations.vllm import plugin
from agentkv.integrations.vllm.clients import ADMIN_KEY_VARIABLE, CLIENTS_VARIABLE
from agentkv.integrations.vllm.engine import seam
from agentkv.integrations.vllm.versions import NEWEST, OLDEST, missing_names, version_problem
from agentkv.policies.names import PARSER_KEY, SHIPPED
from tests.integrations.vllm.vllm_names import serve_parser


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    plugin.register()


def parse(*flags: str) -> Any:
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    return parser.parse_args(list(flags))


def parse_serve(flags: list[str]) -> Any:
    """What `vllm serve` itself reads, the flags of its HTTP server too."""
    return serve_parser().parse_args(flags)


def test_registering_twice_wraps_once() -> None:
    """Registering a second time in a process changes nothing."""
    before = EngineArgs.add_cli_args
    plugin.register()
    assert EngineArgs.add_cli_args is before


@pytest.mark.parametrize(
    ("flags", "is_reported"),
    [
        (("--scheduling-policy", "agentkv"), True),
        (("--scheduling-policy", "agentkv", "--no-enable-prompt-tokens-details"), False),
        (("--scheduling-policy", "fcfs", "--enable-prompt-tokens-details"), True),
        (("--scheduling-policy", "fcfs"), False),
    ],
)
def test_cached_tokens_are_reported_under_our_policies(
    flags: tuple[str, ...], is_reported: bool
) -> None:
    """Plain `vllm serve` reports cached tokens under our policies unless told otherwise."""
    arguments = parse_serve(["--model", "m", *flags])
    AsyncEngineArgs.from_cli_args(arguments)
    assert arguments.enable_prompt_tokens_details is is_reported


def test_an_unknown_policy_is_refused_with_the_valid_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The error for an unknown policy lists ours among the choices."""
    with pytest.raises(SystemExit):
        parse("--scheduling-policy", "continum")
    listed = capsys.readouterr().err
    assert all(policy in listed for policy in SHIPPED)


def args(model_config: Path, **given: Any) -> EngineArgs:
    return EngineArgs(
        model=str(model_config),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=512,
        **given,
    )


@pytest.mark.parametrize("policy", SHIPPED)
def test_our_policy_becomes_fcfs_with_our_scheduler(policy: str, model_config: Path) -> None:
    """vLLM's config sees fcfs with our scheduler class, and our settings in additional_config."""
    given = {"agentkv": {"max_ttl_s": 9.0}, "other": 1}
    engine_args = args(model_config, scheduling_policy=policy, additional_config=given)
    config = engine_args.create_engine_config()
    assert config.scheduler_config.policy == "fcfs"
    assert config.scheduler_config.scheduler_cls == plugin.SCHEDULER
    assert config.additional_config == {
        "agentkv": {"max_ttl_s": 9.0, "policy": policy},
        "other": 1,
    }
    assert engine_args.scheduling_policy == policy
    assert given == {"agentkv": {"max_ttl_s": 9.0}, "other": 1}


def test_an_engine_in_a_program_takes_a_policy_of_ones_own_from_the_environment(
    model_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AGENTKV_POLICY=./mine.py:Mine stands for an engine whose policy was left at the default."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(plugin.POLICY_VARIABLE, "./mine.py:Mine")
    source = "from agentkv.policies import Policy\n\nclass Mine(Policy):\n    pass\n"
    (tmp_path / "mine.py").write_text(source)
    config = args(model_config).create_engine_config()
    assert config.scheduler_config.scheduler_cls == plugin.SCHEDULER
    assert config.additional_config == {"agentkv": {"policy": f"{tmp_path}/mine.py:Mine"}}


def test_settings_come_from_the_environment_where_the_engine_is_given_none(
    model_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AGENTKV_SETTINGS is read for an engine without settings, and checked as those are."""
    monkeypatch.setenv(plugin.POLICY_VARIABLE, "continuum")
    monkeypatch.setenv(plugin.SETTINGS_VARIABLE, '{"ttl": "fixed"}')
    config = args(model_config).create_engine_config()
    assert config.additional_config["agentkv"] == {"ttl": "fixed", "policy": "continuum"}
    own = args(model_config, additional_config={"agentkv": {"max_jobs": 10}}).create_engine_config()
    assert own.additional_config["agentkv"] == {"max_jobs": 10, "policy": "continuum"}
    for wrong in ('{"ttl": ', '{"tttl": 1}'):
        monkeypatch.setenv(plugin.SETTINGS_VARIABLE, wrong)
        with pytest.raises(SettingsError, match=r"AGENTKV_SETTINGS|tttl"):
            args(model_config).create_engine_config()


@pytest.mark.parametrize("named", ["fcfs", "priority", ""])
@pytest.mark.parametrize("is_flag", [True, False])
def test_stock_policies_pass_through_untouched(
    is_flag: bool, named: str, model_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They get neither our scheduler class nor our settings, by flag or by AGENTKV_POLICY."""
    monkeypatch.setenv(plugin.POLICY_VARIABLE, "" if is_flag else named)
    given = {"scheduling_policy": named} if is_flag and named else {}
    config = args(model_config, **given).create_engine_config()
    assert config.scheduler_config.policy == (named if given else "fcfs")
    assert config.scheduler_config.scheduler_cls is None
    assert config.additional_config == {}


def test_a_misspelled_policy_in_the_environment_is_refused(
    model_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelled AGENTKV_POLICY is an error with the valid names, not stock without a word."""
    monkeypatch.setenv(plugin.POLICY_VARIABLE, "agentvk")
    with pytest.raises(SetupError, match="got 'agentvk': did you mean agentkv"):
        args(model_config).create_engine_config()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"enable_prefix_caching": False}, "prefix caching is off: remove --no-enable-prefix"),
        ({"scheduler_cls": "x.Y"}, "give one of them"),
        (
            {"additional_config": {"agentkv": {"tttl": 3}}},
            "unknown key: got 'tttl': did you mean ttl\\?",
        ),
    ],
)
def test_what_our_policies_cannot_work_with_is_refused(
    given: dict[str, Any], problem: str, model_config: Path
) -> None:
    """Prefix caching off, another scheduler and a wrong key are refused before the model loads."""
    with pytest.raises(AgentKVError, match=problem):
        args(model_config, scheduling_policy="continuum", **given).create_engine_config()


def test_the_error_for_a_model_without_prefix_caching_says_what_to_add(tmp_path: Path) -> None:
    """vLLM turns it off for a Mamba model by itself: there is no flag to remove."""
    shape = {"hidden_size": 64, "state_size": 16, "num_hidden_layers": 1, "vocab_size": 1000}
    model = {"architectures": ["MambaForCausalLM"], "model_type": "mamba", **shape}
    (tmp_path / "config.json").write_text(json.dumps(model), encoding="utf-8")
    with pytest.raises(AgentKVError, match="add --enable-prefix-caching") as raised:
        args(tmp_path, scheduling_policy="agentkv").create_engine_config()
    assert "remove" not in str(raised.value)


def test_the_output_folder_flag_reaches_the_settings(model_config: Path, tmp_path: Path) -> None:
    """--run-output-dir reaches the settings as `run_output_dir`."""
    flags = ["--model", str(model_config), "--scheduling-policy", "continuum", "--dtype", "float32"]
    parsed = parse(*flags, "--skip-tokenizer-init", "--run-output-dir", str(tmp_path))
    config = EngineArgs.from_cli_args(parsed).create_engine_config()
    assert config.additional_config["agentkv"]["run_output_dir"] == str(tmp_path)


def test_the_parser_of_tool_calls_reaches_the_engine() -> None:
    """Under our policies the engine learns which parser the API server has, with its plugin."""
    chosen = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    for policy, expected in (("agentkv", ["hermes", ""]), ("fcfs", None)):
        arguments = parse_serve(["--model", "m", "--scheduling-policy", policy, *chosen])
        made = AsyncEngineArgs.from_cli_args(arguments)
        assert made.additional_config.get(PARSER_KEY) == expected


@pytest.mark.parametrize("is_flag", [True, False])
def test_the_admin_key_is_one_of_the_servers_keys(
    is_flag: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AGENTKV_ADMIN_KEY joins --api-key, or VLLM_API_KEY, which counts as that; vLLM masks it in
    its log."""
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, "root")
    monkeypatch.setenv("VLLM_API_KEY", "" if is_flag else "one")
    flags = ["--model", "m", "--scheduling-policy", "agentkv"]
    arguments = parse_serve([*flags, "--api-key", "one"] if is_flag else flags)
    for _ in range(2):  # in each process of the server
        AsyncEngineArgs.from_cli_args(arguments)
        assert arguments.api_key == ["one", "root"]


def test_an_admin_key_without_other_keys_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no key is asked for, everybody sees all jobs already."""
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, "root")
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    flags = ["--model", "m", "--scheduling-policy", "agentkv"]
    arguments = parse_serve(flags)
    with pytest.raises(AgentKVError, match="--api-key"):
        AsyncEngineArgs.from_cli_args(arguments)
    arguments = parse_serve(["--model", "m"])
    AsyncEngineArgs.from_cli_args(arguments)
    assert arguments.api_key is None


def of_clients(monkeypatch: pytest.MonkeyPatch, clients: str, *flags: str, **given: Any) -> Any:
    """The keys of a server with these named clients, flags and settings."""
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    monkeypatch.setenv(CLIENTS_VARIABLE, clients)
    settings = ["--additional-config", json.dumps({"agentkv": given})]
    arguments = parse_serve(["--model", "m", "--scheduling-policy", "agentkv", *settings, *flags])
    for _ in range(2):  # in each process of the server
        AsyncEngineArgs.from_cli_args(arguments)
    return arguments.api_key


def test_keys_of_named_clients_are_keys_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of AGENTKV_CLIENTS join --api-key, or are all of the keys."""
    clients = json.dumps({"alice": "one", "bob": ["two", "three"]})
    assert of_clients(monkeypatch, clients) == ["one", "two", "three"]
    joined = of_clients(monkeypatch, clients, "--api-key", "zero", "two")
    assert joined == ["zero", "two", "one", "three"]


@pytest.mark.parametrize(
    ("clients", "settings", "flags", "problem"),
    [
        ('{"alice": "secret"', {}, (), "AGENTKV_CLIENTS: malformed JSON"),
        ('["secret"]', {}, (), "AGENTKV_CLIENTS: got a list"),
        ('{"alice": 5}', {}, (), "'alice' has no key"),
        ('{"alice": ""}', {}, (), "'alice' has no key"),
        ('{"alice": "secret", "bob": ["secret"]}', {}, (), "'alice' and 'bob' have the same key"),
        ("", {"client_header": "X-Tenant"}, ("--api-key", "secret"), "the server has API keys"),
        ('{"alice": "secret"}', {"client_header": "X-Tenant"}, (), "the server has API keys"),
        ("", {"client_header": "X Tenant"}, (), "client_header"),
    ],
)
def test_clients_that_cannot_be_told_apart_are_refused(
    clients: str,
    settings: dict[str, Any],
    flags: tuple[str, ...],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One error says what was seen and what to do, and holds no key."""
    with pytest.raises(SettingsError, match=problem) as refused:
        of_clients(monkeypatch, clients, *flags, **settings)
    assert "secret" not in str(refused.value)


def test_a_proxy_may_name_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind `client_header` a name needs no key, and the server gets none."""
    assert of_clients(monkeypatch, "", client_header="X-Tenant") is None


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        *(("0.30.1", "older"), ("0.31.0", None), ("0.32.0+cpu", None), ("0.33.2", None)),
        *(("0.34.0", "newer"), ("1.0", "newer"), ("dev", None)),
    ],
)
def test_versions_are_judged(version: str, problem: str | None) -> None:
    """>= 0.31, < 0.34 is supported; older is refused, newer is checked and warned of."""
    found = version_problem(version)
    assert found is None if problem is None else problem in str(found)


def test_what_is_installed_is_what_is_supported() -> None:
    """The extra `vllm` asks for the versions that the plugin starts without a warning."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    (oldest, newest) = (f"{major}.{minor}" for major, minor in (OLDEST, NEWEST))
    assert project["optional-dependencies"]["vllm"] == [f"vllm>={oldest},<{newest}"]


def test_an_unsupported_vllm_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error for an unsupported vLLM says what is installed and what to do."""
    monkeypatch.setattr("vllm.__version__", "0.30.1")
    with pytest.raises(plugin.SetupError, match=r"0\.30\.1 is older .*install vllm>=0\.31"):
        plugin.check_vllm()


def test_every_name_we_build_on_is_there() -> None:
    """The installed vLLM has every name that the plugin builds on."""
    assert missing_names(seam.CONTRACT) == []


def test_a_missing_name_is_reported_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A private name that an upgrade moved is named at start."""
    gone = ("vllm.v1.core.sched.scheduler.Scheduler", "_gone")
    monkeypatch.setattr(seam, "CONTRACT", (*seam.CONTRACT, gone))
    with pytest.raises(plugin.SetupError, match=r"Scheduler\._gone"):
        plugin.check_vllm()
