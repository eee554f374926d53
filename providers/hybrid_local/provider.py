"""The provider: launches, lists and ends the machines of `hybrid_local.machine`."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hybrid.core.model import Market, Offer
from hybrid.core.units import GIB
from hybrid.lease.guard import write_json
from hybrid.ports import (
    BadParameter,
    CheckLine,
    Denied,
    Instance,
    InstanceState,
    LaunchRequest,
    OutOfCapacity,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Unsupported,
)
from hybrid_local.settings import (
    Faults,
    LocalSettings,
    MachineType,
    default_folder,
    read_settings,
)

PRICES_AS_OF = datetime(2026, 12, 1, tzinfo=UTC)
PRICE_SOURCE = "hybrid_local price list (made up)"
#: What a lease on this cloud adds to the boot delay until its Ray cluster answers.
RAY_START_SECONDS = 10.0
_ERRORS: Mapping[str, type[ProviderError]] = {
    kind.kind: kind
    for kind in (OutOfCapacity, QuotaExceeded, Denied, Unsupported, BadParameter, Throttled)
}


class LocalProvider:
    """Implements `hybrid.ports.Provider`, `Reachable` and `Checkable`.

    All state is in files below `folder`: machines outlive the provider object and the process
    that launched them.
    """

    name = "local"

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = (folder or default_folder()).absolute()
        (self.folder / "machines").mkdir(parents=True, exist_ok=True)

    def offers(self) -> Sequence[Offer]:
        settings = read_settings(self.folder)
        return [
            offer
            for zone in settings.zones
            for kind in settings.types
            for offer in _offers_of(kind, zone, settings)
        ]

    def launch(self, request: LaunchRequest) -> Sequence[Instance]:
        settings = read_settings(self.folder)
        with self._locked():
            earlier = self._launched(request)
            if earlier:
                for folder in earlier:
                    if not (folder / "state.json").exists():
                        _start(folder)  # a launch that was interrupted; twice does no harm
                return [self._instance(folder) for folder in earlier]
            self._refuse(request, settings)
            folders = [self._create(request, settings, i) for i in range(request.count)]
        for folder in folders:
            _start(folder)
        if settings.faults.here(request.offer.zone).launch_hangs_after_creating:
            raise ProviderError("the launch call timed out (the machine may exist)")
        return [self._instance(folder) for folder in folders]

    def instances(self) -> Sequence[Instance]:
        hidden = read_settings(self.folder).faults.invisible_seconds
        found = []
        for folder in self._folders():
            spec = _read(folder / "machine.json")
            if spec and time.time() - spec["created_at"] >= hidden:
                found.append(self._instance(folder))
        return found

    def terminate(self, instance_id: str) -> None:
        folder = self._folder(instance_id)
        if folder is not None:
            (folder / "terminate").touch()
            if not _alive(folder):
                self._bury(folder)

    # ------------------------------------------------------------------ optional ports

    def endpoint(self, instance_id: str) -> str | None:
        folder = self._folder(instance_id)
        state = _read(folder / "lease" / "state.json") if folder else None
        if state is None or state["phase"] != "up":
            return None
        return str(state["dashboard_url"])

    def boot_log(self, instance_id: str) -> str:
        folder = self._folder(instance_id)
        if folder is None or not (folder / "boot.log").exists():
            return ""
        return (folder / "boot.log").read_text(errors="replace")[-2000:]

    def sweep(self, instance_id: str, attempt_id: str) -> int:
        """Have the machine's guard kill what an attempt left; how many are still there."""
        folder = self._folder(instance_id)
        if folder is None or not (folder / "lease").is_dir():
            return 0
        request = folder / "lease" / "sweep"
        request.write_text(attempt_id)
        deadline = time.monotonic() + 3.0
        while request.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        answer = _read(folder / "lease" / "swept.json") or {}
        return int(answer.get("left", 1)) if request.exists() else 0

    def check(self) -> Sequence[CheckLine]:
        writable = os.access(self.folder, os.W_OK)
        lines = [CheckLine("folder", writable, str(self.folder), "" if writable else "chmod it")]
        try:
            settings = read_settings(self.folder)
        except BadParameter as error:
            return [*lines, CheckLine("local.toml", False, str(error), "correct the file")]
        known = f"{len(settings.types)} types in {len(settings.zones)} zones"
        return [*lines, CheckLine("price list", True, known)]

    # ------------------------------------------------------------------ inside

    def _refuse(self, request: LaunchRequest, settings: LocalSettings) -> None:
        """Raise what a real cloud would."""
        offer, faults = request.offer, settings.faults.here(request.offer.zone)
        self._planned_refusal(faults)
        known = {o.key: o for o in self.offers()}.get(offer.key)
        if known is None:
            raise Unsupported(f"no {offer.instance_type} ({offer.market}) in {offer.zone}")
        if known.price_per_hour is None:
            raise BadParameter(f"{offer.key} has no price")
        ceiling = request.price_ceiling
        if ceiling is not None and known.price_per_hour > ceiling:
            raise OutOfCapacity(f"price {known.price_per_hour} is above the ceiling {ceiling}")
        living = [i for i in map(self._instance, self._folders()) if i.state != "gone"]
        if len(living) + request.count > settings.quota:
            raise QuotaExceeded(f"{len(living)} machines of a quota of {settings.quota} are used")
        in_zone = sum(i.zone == offer.zone for i in living)
        if in_zone + request.count > settings.capacity:
            raise OutOfCapacity(f"zone {offer.zone} has no room ({in_zone} machines)")

    def _planned_refusal(self, faults: Faults) -> None:
        if not faults.launch_error:
            return
        counter = self.folder / "launch-errors"
        so_far = int(counter.read_text()) if counter.exists() else 0
        if faults.launch_error_times and so_far >= faults.launch_error_times:
            return
        counter.write_text(str(so_far + 1))
        kind = _ERRORS.get(faults.launch_error, ProviderError)
        raise kind(f"rehearsed fault: {faults.launch_error}")

    def _launched(self, request: LaunchRequest) -> list[Path]:
        """The machines that this token made before; another request is refused."""
        made = []
        for folder in self._folders():
            spec = _read(folder / "machine.json")
            if spec and spec["token"] == request.token:
                if spec["fingerprint"] != _fingerprint(request):
                    raise BadParameter(f"token {request.token} was used for another request")
                made.append(folder)
        return made

    def _create(self, request: LaunchRequest, settings: LocalSettings, index: int) -> Path:
        name = "m-" + hashlib.sha256(f"{request.token}/{index}".encode()).hexdigest()[:12]
        folder = self.folder / "machines" / name
        folder.mkdir()
        (folder / "user-data.sh").write_text(request.user_data)
        offer, faults = request.offer, settings.faults.here(request.offer.zone)
        number = int(name[2:], 16)
        spec = {
            "id": name,
            "token": request.token,
            "fingerprint": _fingerprint(request),
            "tags": dict(request.tags),
            "zone": offer.zone,
            "instance_type": offer.instance_type,
            "market": str(offer.market),
            "gpus": offer.gpus,
            "address": f"127.77.{number % 250 + 1}.{number // 250 % 250 + 1}",
            "created_at": time.time(),
            "expires_at": request.expires_at.timestamp(),
            "boot_delay_seconds": settings.boot_delay_seconds,
            "hang_at_boot": faults.hang_at_boot,
            "terminate_lies_seconds": faults.terminate_lies_seconds,
            "reclaim_after_seconds": (
                faults.spot_reclaim_after_seconds if offer.market is Market.SPOT else 0.0
            ),
        }
        write_json(str(folder / "machine.json"), spec)
        return folder

    def _instance(self, folder: Path) -> Instance:
        spec = _read(folder / "machine.json") or {}
        if not _alive(folder):
            self._bury(folder)
        state = _read(folder / "state.json") or {"state": "pending"}
        reason = str(state.get("reason", ""))
        return Instance(
            id=spec["id"],
            state=InstanceState(state["state"]),
            provider=self.name,
            zone=spec["zone"],
            instance_type=spec["instance_type"],
            tags=spec["tags"],
            launched_at=datetime.fromtimestamp(spec["created_at"], UTC),
            ended_at=(
                datetime.fromtimestamp(state["ended_at"], UTC) if "ended_at" in state else None
            ),
            state_reason=reason,
            reclaimed=reason == "reclaimed",
        )

    def _bury(self, folder: Path) -> None:
        """A machine whose process died (power cut) is gone, whatever its last word was."""
        state = _read(folder / "state.json") or {}
        if state.get("state") == "gone" or not _was_started(folder):
            return
        state.update(state="gone", reason="its process died", ended_at=time.time())
        write_json(str(folder / "state.json"), state)

    def _folders(self) -> list[Path]:
        return sorted((self.folder / "machines").iterdir())

    def _folder(self, instance_id: str) -> Path | None:
        if not re.fullmatch(r"m-[0-9a-f]{12}", instance_id):
            return None
        folder = self.folder / "machines" / instance_id
        return folder if (folder / "machine.json").exists() else None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Launches one after the other, over all processes."""
        with (self.folder / "lock").open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def _offers_of(kind: MachineType, zone: str, settings: LocalSettings) -> Iterator[Offer]:
    missing = settings.faults.here(zone).price_missing
    for market, price in ((Market.ON_DEMAND, kind.price), (Market.SPOT, kind.spot_price)):
        if market is Market.SPOT and price is None:
            continue
        yield Offer(
            provider="local",
            region="local",
            zone=zone,
            instance_type=kind.name,
            market=market,
            gpu_model=kind.gpu_model,
            gpus=kind.gpus,
            gpu_memory_bytes=kind.gpu_memory_gib * GIB,
            cpus=kind.cpus,
            memory_bytes=kind.memory_gib * GIB,
            price_per_hour=None if missing else price,
            currency="USD",
            price_source=PRICE_SOURCE,
            price_as_of=PRICES_AS_OF,
            ready_seconds=settings.boot_delay_seconds + RAY_START_SECONDS,
        )


def _start(folder: Path) -> None:
    """Power on: a process that outlives us."""
    with (folder / "console.log").open("ab") as console:
        subprocess.Popen(
            [sys.executable, "-m", "hybrid_local.machine", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            start_new_session=True,
            cwd="/",
        )


def _was_started(folder: Path) -> bool:
    """A machine just created has no process yet for a moment: that is not death."""
    if (folder / "state.json").exists():
        return True
    spec = _read(folder / "machine.json")
    return spec is not None and time.time() - spec["created_at"] > 15.0


def _alive(folder: Path) -> bool:
    state = _read(folder / "state.json")
    if state is None:
        return not _was_started(folder)
    if state["state"] == "gone":
        return False
    try:
        return str(folder).encode() in Path(f"/proc/{state['pid']}/cmdline").read_bytes()
    except OSError:
        return False


def _fingerprint(request: LaunchRequest) -> str:
    parts = [
        request.offer.key,
        request.count,
        request.user_data,
        sorted(request.tags.items()),
        request.expires_at.isoformat(),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    except (FileNotFoundError, NotADirectoryError):
        return None
