"""The `local` provider passes the contract that every provider must pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybrid.core.model import Offer
from hybrid.ports import BadParameter
from hybrid.testing.provider_contract import ProviderContract
from hybrid_local import LocalProvider
from hybrid_local.settings import read_settings


class LocalFaults:
    """Writes `local.toml`."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "local.toml"

    def no_capacity(self, offer: Offer) -> None:
        self.file.write_text("capacity = 0\n")

    def room_for(self, offer: Offer, machines: int) -> None:
        self.file.write_text(f"capacity = {machines}\n")

    def no_quota(self, offer: Offer) -> None:
        self.file.write_text("quota = 0\n")

    def hide_new_machines(self, seconds: float) -> None:
        self.file.write_text(f"[faults]\ninvisible_seconds = {seconds}\n")

    def lie_on_terminate(self, seconds: float) -> None:
        self.file.write_text(f"[faults]\nterminate_lies_seconds = {seconds}\n")


class TestLocal(ProviderContract):
    @pytest.fixture
    def provider(self, tmp_path: Path) -> LocalProvider:
        (tmp_path / "local.toml").write_text("boot_delay_seconds = 0.1\n")
        return LocalProvider(tmp_path)

    @pytest.fixture
    def faults(self, tmp_path: Path) -> LocalFaults:
        return LocalFaults(tmp_path)


def test_a_wrong_setting_is_named(tmp_path: Path) -> None:
    (tmp_path / "local.toml").write_text("[faults]\nhang_at_bot = true\n")
    with pytest.raises(BadParameter, match=r"unknown key faults\.hang_at_bot"):
        read_settings(tmp_path)
    lines = LocalProvider(tmp_path).check()
    assert [line.ok for line in lines] == [True, False]
