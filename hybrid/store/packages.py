"""The package store: what `ray job submit --working-dir` uploads, kept for as long as a job that
has not ended may need it (Ray's own copy goes away after ten minutes)."""

from __future__ import annotations

import errno
import os
import re
import time
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import mkstemp

#: Ray's own names: _ray_pkg_<hash>.zip, also .jar and .whl for py_modules.
NAME = re.compile(
    r"_ray_pkg_[A-Za-z0-9_.+-]{1,180}\.(zip|jar|whl)|[A-Za-z0-9][A-Za-z0-9_.+-]{0,200}"
)
GRACE_SECONDS = 3600.0


class PackageError(Exception):
    """An upload was refused; `status` is the HTTP status that says so."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class PackageStore:
    """Files in one folder. A file is there under its name only once it is whole and on disk."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder, self.limit_bytes = folder, limit_bytes
        folder.mkdir(parents=True, exist_ok=True)
        for unfinished in folder.glob(".upload-*"):
            unfinished.unlink(missing_ok=True)

    def path(self, name: str) -> Path:
        """Where a package is or would be. A name that is none raises `PackageError` 400."""
        if not NAME.fullmatch(name) or ".." in name:
            raise PackageError(
                400,
                f"{name!r} is no package name: expected _ray_pkg_<hash>.zip as Ray's client "
                "makes it, without slashes or '..'",
            )
        return self._folder / name

    def has(self, name: str) -> bool:
        return self.path(name).is_file()

    async def receive(self, name: str, chunks: AsyncIterator[bytes], length: int | None) -> None:
        """Stream an upload to disk: checked, synced, then renamed. Nothing is left of one that
        breaks off, is too large (413) or does not fit the disk (507)."""
        target = self.path(name)
        if length is not None and length > self.limit_bytes:
            raise self._too_large(length)
        descriptor, temporary = mkstemp(prefix=".upload-", dir=self._folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                size = 0
                async for chunk in chunks:
                    size += len(chunk)
                    if size > self.limit_bytes:
                        raise self._too_large(size)
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            _check_archive(name, Path(temporary))
            os.replace(temporary, target)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise PackageError(
                    507,
                    f"no room for package {name} in {self._folder}: {error.strerror}. Nothing "
                    "was stored; ask the admin to free disk space, then submit again",
                ) from error
            raise
        finally:
            Path(temporary).unlink(missing_ok=True)

    def _too_large(self, size: int) -> PackageError:
        mib = 1024 * 1024
        return PackageError(
            413,
            f"the package has {size / mib:.1f} MiB or more, the limit is "
            f"{self.limit_bytes / mib:g} MiB. Leave data, checkpoints and .git out of the working "
            "directory (runtime_env 'excludes', .rayignore or .gitignore), or have the admin raise "
            "HYBRID_PACKAGE_LIMIT_BYTES",
        )

    def collect(self, needed: frozenset[str], grace_seconds: float = GRACE_SECONDS) -> list[str]:
        """Remove packages that no live job names and that nobody uploaded lately."""
        removed = []
        for path in self._folder.iterdir():
            old = time.time() - path.stat().st_mtime > grace_seconds
            if old and path.name not in needed and not path.name.startswith("."):
                path.unlink(missing_ok=True)
                removed.append(path.name)
        return removed

    def touch(self, name: str) -> None:
        """A client asked for it and will rely on it: the grace period starts anew."""
        os.utime(self.path(name))


def _check_archive(name: str, path: Path) -> None:
    """A package that is no whole zip archive is refused now, not when the job starts."""
    if not name.endswith((".zip", ".jar", ".whl")):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            archive.infolist()
    except zipfile.BadZipFile as error:
        raise PackageError(400, f"package {name} is damaged: {error}; submit again") from error


def packages_of(runtime_env: dict[str, object]) -> list[str]:
    """The names of the uploaded packages that a runtime_env refers to."""
    modules = runtime_env.get("py_modules")
    uris = [runtime_env.get("working_dir"), *(modules if isinstance(modules, list) else [])]
    return [uri.removeprefix("gcs://") for uri in uris if str(uri).startswith("gcs://")]
