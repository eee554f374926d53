"""The package store and the log store on a real disk."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import zipfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hybrid.service.deps import SystemClock
from hybrid.store.logs import LogStore
from hybrid.store.packages import PackageError, PackageStore, packages_of

NAME = "_ray_pkg_0123456789abcdef.zip"


def a_zip(size: int = 10) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("train.py", os.urandom(size))
    return out.getvalue()


async def chunks(data: bytes, breaks: bool = False) -> AsyncIterator[bytes]:
    yield data[: len(data) // 2]
    if breaks:
        raise ConnectionResetError("the client went away")
    yield data[len(data) // 2 :]


@pytest.fixture
def packages(tmp_path: Path) -> PackageStore:
    return PackageStore(tmp_path / "packages", limit_bytes=100_000)


def test_an_upload_is_there_once_it_is_whole(packages: PackageStore) -> None:
    data = a_zip()
    assert not packages.has(NAME)
    asyncio.run(packages.receive(NAME, chunks(data), len(data)))
    assert packages.path(NAME).read_bytes() == data


def test_an_upload_that_breaks_off_leaves_nothing(packages: PackageStore) -> None:
    with pytest.raises(ConnectionResetError):
        asyncio.run(packages.receive(NAME, chunks(a_zip(), breaks=True), None))
    assert list(packages.path(NAME).parent.iterdir()) == []


@pytest.mark.parametrize("length", [None, 200_000])
def test_over_the_limit_is_413_and_says_what_to_do(
    packages: PackageStore, length: int | None
) -> None:
    with pytest.raises(PackageError, match=r"the limit is .* MiB.*\.git") as refused:
        asyncio.run(packages.receive(NAME, chunks(a_zip(200_000)), length))
    assert refused.value.status == 413
    assert list(packages.path(NAME).parent.iterdir()) == []


@pytest.mark.parametrize("name", ["../x.zip", "a/b.zip", "..", "", ".hidden", "x" * 300, "a\0b"])
def test_names_that_are_none_are_refused(packages: PackageStore, name: str) -> None:
    with pytest.raises(PackageError, match="no package name"):
        packages.has(name)


def test_a_damaged_archive_is_refused_now_and_not_when_the_job_starts(
    packages: PackageStore,
) -> None:
    with pytest.raises(PackageError, match="damaged") as refused:
        asyncio.run(packages.receive(NAME, chunks(a_zip()[:-30]), None))
    assert refused.value.status == 400
    assert not packages.has(NAME)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB. Needs root; elsewhere a limit on file size must do."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    where = tmp_path / "disk"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(where)], check=True)
    yield where
    subprocess.run(["umount", str(where)], check=True)


def test_a_full_disk_is_507_and_nothing_is_acknowledged(tiny_disk: Path) -> None:
    packages = PackageStore(tiny_disk, limit_bytes=10_000_000)
    with pytest.raises(PackageError, match="no room") as refused:
        asyncio.run(packages.receive(NAME, chunks(a_zip(300_000)), None))
    assert refused.value.status == 507
    assert list(tiny_disk.iterdir()) == []


def test_collect_keeps_what_live_jobs_name_and_what_is_young(packages: PackageStore) -> None:
    for name in ("old.zip", "needed.zip", "young.zip"):
        asyncio.run(packages.receive(name, chunks(a_zip()), None))
        if name != "young.zip":
            os.utime(packages.path(name), (0, 0))
    assert packages.collect(frozenset({"needed.zip"})) == ["old.zip"]
    assert packages.has("needed.zip")
    assert packages.has("young.zip")


def test_the_packages_of_a_runtime_env() -> None:
    env = {
        "working_dir": "gcs://_ray_pkg_1.zip",
        "py_modules": ["gcs://_ray_pkg_2.zip", "s3://bucket/x.zip"],
    }
    assert packages_of(env) == ["_ray_pkg_1.zip", "_ray_pkg_2.zip"]
    assert packages_of({}) == []


# --------------------------------------------------------------------------- logs


@pytest.fixture
def logs(tmp_path: Path) -> LogStore:
    return LogStore(tmp_path / "logs", SystemClock())


def test_segments_read_in_the_order_in_which_things_happened(logs: LogStore) -> None:
    logs.say("j", "queued")
    logs.append_driver("j", 1, b"one\n")
    logs.append_driver("j", 1, b"two\n")
    logs.say("j", "attempt lost")
    logs.append_driver("j", 2, b"three\n")
    text = logs.read("j").decode()
    order = [text.index(part) for part in ("queued", "one", "two", "attempt lost", "three")]
    assert order == sorted(order)
    assert logs.driver_size("j", 1) == 8
    assert logs.driver_size("j", 2) == 6
    assert logs.driver_size("j", 3) == 0
    assert logs.last_driver_line("j", 1) == "two"
    assert logs.last_driver_line("j", 3) == ""
    whole = logs.read("j")
    assert logs.read("j", 10) == whole[10:]
    assert logs.read("j", 10, 15) == whole[10:25]
    assert logs.read("j", len(whole)) == b""


@pytest.mark.parametrize("job_id", ["../../etc", ".", "..", "a b%2F", "ü", "x" * 80])
def test_no_job_id_leaves_the_folder(logs: LogStore, job_id: str, tmp_path: Path) -> None:
    logs.say(job_id, "hello")
    assert b"hello" in logs.read(job_id)
    assert {path.name for path in tmp_path.iterdir()} == {"logs"}
    logs.delete(job_id)
    assert logs.read(job_id) == b""


def test_a_follower_misses_nothing_that_was_written_before_the_end(logs: LogStore) -> None:
    async def scene() -> bytes:
        over = False

        async def is_over() -> bool:
            return over

        async def write() -> None:
            nonlocal over
            for number in range(50):
                logs.append_driver("j", 1, f"line {number}\n".encode())
                await asyncio.sleep(0)
            over = True
            logs.wake("j")

        writer = asyncio.create_task(write())
        seen = b"".join([part async for part in logs.follow("j", is_over)])
        await writer
        return seen

    assert asyncio.run(scene()) == b"".join(f"line {n}\n".encode() for n in range(50))
