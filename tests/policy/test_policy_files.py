"""Policy files: what is wrong is named with file, line, key, value and rule."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from hybrid.plugins import PROVIDERS, STRATEGIES, PluginError, discover
from hybrid.policy.files import find_policy, load, parse, policy_names
from hybrid.policy.schema import PolicyError, knobs
from hybrid_policies.threshold import ConstantWait

INSTALLED = {name: plugin.load for name, plugin in discover(STRATEGIES).items()}


def test_every_shipped_policy_is_valid() -> None:
    assert {"default", "never", "burst-now"} <= set(policy_names(None))
    for name in policy_names(None):
        assert load(name, None, INSTALLED).policy is not None
    assert isinstance(load("default", None, INSTALLED).strategy, ConstantWait)


def test_ones_own_folder_wins(tmp_path: Path) -> None:
    (tmp_path / "never.toml").write_text("[leases]\nwarm_seconds = 7\n")
    assert find_policy("never", tmp_path).parent == tmp_path
    assert load("never", tmp_path, INSTALLED).policy.leases.warm_seconds == 7.0


def test_values_keep_their_kind() -> None:
    text = '[caps]\nmax_instances = 3\nmax_spend_per_day = "12.345"\nproviders = ["local"]\n'
    text += "[rates.cards]\nA100 = 1.25\n"
    policy = parse("x", text, "x.toml", INSTALLED).policy
    assert policy.caps.max_spend_per_day == Decimal("12.345")
    assert policy.caps.providers == ("local",)
    assert policy.rates.cards == {"A100": Decimal("1.25")}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[burst]\nstrategy = 'never'\n\n[leeses]\n", r"x\.toml, line 4: .*did you mean leases\?"),
        ("[leases]\n\nwarm_secs = 3\n", r"line 3: .*did you mean leases\.warm_seconds\?"),
        ("[leases]\nwarm_seconds = -1\n", r"line 2: leases\.warm_seconds = -1 must be at least 0"),
        ("[leases]\nwarm_seconds = 'x'\n", r"leases\.warm_seconds = 'x' must be a number"),
        ("[jobs]\nmax_attempts = 1.5\n", r"jobs\.max_attempts = 1\.5 must be a whole number"),
        ("[jobs]\nmax_attempts = true\n", "must be a number"),
        ("[leases]\nwarm_seconds = nan\n", "must be a finite number"),
        ("[caps]\ncurrency = 3\n", "must be a string"),
        ("[caps]\nproviders = 'local'\n", "must be a list of strings"),
        ("leases = 3\n", "must be a table"),
        ("[leases\n", "not valid TOML"),
        ("[burst]\nstrategy = 'constant-weight'\n", r"not installed.*did you mean constant-wait\?"),
        ("[burst]\n[burst.params]\nmax_weight = 3\n", "takes max_wait_seconds"),
        ("[burst]\n[burst.params]\nmax_wait_seconds = -3\n", "must be at least 0"),
    ],
)
def test_an_error_says_where_and_what(text: str, says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        parse("x", text, "x.toml", INSTALLED)


def test_an_unknown_policy_names_the_nearest() -> None:
    with pytest.raises(PolicyError, match=r"did you mean default\?"):
        find_policy("defualt", None)


def test_every_knob_is_documented_in_the_readme() -> None:
    text = Path("policies/README.md").read_text()
    for knob in knobs():
        assert knob.doc, knob.key
        assert f"`{knob.key}`" in text, f"{knob.key} is missing: python -m hybrid.docs"


def test_plugins_are_found_by_entry_point_and_a_broken_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "broken_cloud-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-cloud\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hybrid.providers]\nbroken = broken_cloud:Provider\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = discover(PROVIDERS)
    assert {"local", "broken"} <= set(found)
    assert found["local"].load().name == "local"
    with pytest.raises(PluginError, match=r"'broken'.*broken-cloud.*ModuleNotFoundError"):
        found["broken"].load()
