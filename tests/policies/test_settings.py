"""Settings are validated at start; each error names the key and what is allowed."""

import pytest

from agentkv.errors import SettingsError
from agentkv.policies.continuum import ContinuumSettings
from agentkv.policies.names import read_settings


def test_json_values_are_read() -> None:
    """Values that JSON gives, such as lists for tuples, are accepted."""
    given = {"ttl": "fixed", "rules": "released", "prefill_reload_s": [0, 0.001, 0]}
    settings = read_settings(given, policy="continuum")
    assert isinstance(settings, ContinuumSettings)
    assert settings.prefill_reload is not None
    assert (settings.ttl, settings.prefill_reload.linear_s) == ("fixed", 0.001)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tll": "fixed"}, r"unknown key: got 'tll', allowed are rules, ttl, fixed_ttl_s"),
        (
            {"headroom": 0.1},
            r"'headroom' is a setting of agentkv, not of continuum",
        ),
        ({"ttl": "Fixed"}, r"'ttl': .*'paper' or 'fixed', got 'Fixed'"),
        ({"fixed_ttl_s": -1}, r"'fixed_ttl_s': .*greater than or equal to 0, got -1"),
        ({"fixed_ttl_s": "2"}, r"'fixed_ttl_s': .*number, got '2'"),
        ({"max_ttl_s": float("nan")}, r"'max_ttl_s': .*finite"),
        ({"max_jobs": 0}, r"'max_jobs': .*got 0"),
        (
            {"predictor": "oracle"},
            r"predictor: got 'oracle', allowed are default, context_serve",
        ),
        ({"predictor_state": 7}, r"'predictor_state': .*string, got 7"),
        ({"predictor_save_s": 0}, r"'predictor_save_s': .*greater than 0, got 0"),
        ({"prefill_reload_s": [1, 2]}, r"'prefill_reload_s"),
        ([], r"must hold a JSON object, got list \[\]"),
        ("continuum", r"must hold a JSON object, got str"),
    ],
)
def test_a_wrong_setting_is_named(given: object, message: str) -> None:
    """The error for a wrong setting names the key, the value seen and what is allowed."""
    with pytest.raises(SettingsError, match=message):
        read_settings(given, policy="continuum")


@pytest.mark.parametrize("given", [[-1, 0, 0], [0, float("nan"), 0], [0, 0, float("inf")]])
def test_computing_takes_a_finite_time(given: list[float]) -> None:
    """Infinite or negative costs of computing are refused."""
    with pytest.raises(SettingsError, match=r"prefill_reload_s.*three numbers of 0 or more"):
        read_settings({"prefill_reload_s": given}, policy="agentkv")
