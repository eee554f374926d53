"""`local.toml` in the cloud's folder: price list, capacity, and faults. Read anew on each call."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field, fields
from decimal import Decimal
from pathlib import Path
from typing import Any

from hybrid.ports import BadParameter


@dataclass(frozen=True, slots=True)
class MachineType:
    """Something on the price list. A spot price of None: not sold as spot."""

    name: str
    gpu_model: str | None
    gpus: int
    gpu_memory_gib: int
    cpus: float
    memory_gib: int
    price: Decimal | None
    spot_price: Decimal | None = None


#: Made-up figures in the range of real ones: good for rehearsal, not for budgeting.
PRICE_LIST = (
    MachineType("local.cpu.2", None, 0, 0, 2, 8, Decimal("0.10"), Decimal("0.04")),
    MachineType("local.t4.1", "T4", 1, 16, 4, 16, Decimal("0.53"), Decimal("0.20")),
    MachineType("local.l4.1", "L4", 1, 24, 8, 32, Decimal("0.80"), Decimal("0.32")),
    MachineType("local.a100.1", "A100", 1, 80, 12, 128, Decimal("3.67"), Decimal("1.47")),
    MachineType("local.a100.4", "A100", 4, 80, 48, 512, Decimal("14.69"), Decimal("5.88")),
    MachineType("local.a100.8", "A100", 8, 80, 96, 1024, Decimal("29.39"), Decimal("11.76")),
)


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong, and how. Times in seconds; 0 means it does not happen.

    `launch_error` is a `ports.ErrorKind` value that every launch is refused with. `zones` names
    where a fault applies; empty means everywhere.
    """

    launch_error: str = ""
    launch_error_times: int = 0
    launch_hangs_after_creating: bool = False
    invisible_seconds: float = 0.0
    terminate_lies_seconds: float = 0.0
    hang_at_boot: bool = False
    spot_reclaim_after_seconds: float = 0.0
    price_missing: bool = False
    zones: tuple[str, ...] = ()

    def here(self, zone: str) -> Faults:
        """These faults if they apply in the zone, else none."""
        return self if not self.zones or zone in self.zones else Faults()


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """`capacity` is how many machines a zone holds; `quota` how many the account may have."""

    zones: tuple[str, ...] = ("local-a", "local-b")
    boot_delay_seconds: float = 1.0
    capacity: int = 4
    quota: int = 16
    faults: Faults = Faults()
    types: tuple[MachineType, ...] = field(default=PRICE_LIST)


def read_settings(folder: Path) -> LocalSettings:
    """From `local.toml`; absent means the defaults. Raises `BadParameter` naming the key."""
    path = folder / "local.toml"
    try:
        document = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return LocalSettings()
    except tomllib.TOMLDecodeError as error:
        raise BadParameter(f"{path}: not valid TOML: {error}") from error
    faults = document.pop("faults", {})
    _known(path, "faults.", faults, Faults)
    _known(path, "", document, LocalSettings)
    if "zones" in faults:
        faults["zones"] = tuple(faults["zones"])
    if "zones" in document:
        document["zones"] = tuple(document["zones"])
    document.pop("types", None)
    return LocalSettings(**document, faults=Faults(**faults))


def _known(path: Path, prefix: str, table: dict[str, Any], kind: type) -> None:
    names = {item.name for item in fields(kind)}
    for key in table:
        if key not in names:
            raise BadParameter(f"{path}: unknown key {prefix}{key}; known: {', '.join(names)}")


def default_folder() -> Path:
    """`$HYBRID_LOCAL_CLOUD_DIR`, else a folder of the user's state."""
    given = os.environ.get("HYBRID_LOCAL_CLOUD_DIR")
    if given:
        return Path(given)
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "hybrid" / "local-cloud"
