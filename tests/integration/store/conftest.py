"""The store's tests run on SQLite and on a real PostgreSQL server of their own."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from hybrid.store.engine import Store
from tests.installation import free_port


def _binary(name: str) -> str | None:
    """On PATH, or where Debian keeps it."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a server that lives as long as this session."""
    initdb, server = _binary("initdb"), _binary("postgres")
    if initdb is None or server is None:
        pytest.skip("no PostgreSQL server here (Debian: postgresql); .ci/run installs it")
    folder, port = tempfile.mkdtemp(prefix="hb-pg-", dir="/tmp"), free_port()
    # The server refuses to run as root.
    user = pwd.getpwnam("postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name)
    os.chown(folder, user.pw_uid, user.pw_gid)
    as_user = {"user": user.pw_uid, "group": user.pw_gid} if os.geteuid() == 0 else {}
    setup = [initdb, "-D", folder, "-U", "hybrid", "--auth=trust", "--no-sync", "-E", "UTF8"]
    subprocess.run(setup, check=True, capture_output=True, cwd=folder, **as_user)  # type: ignore[call-overload]
    command = [server, "-D", folder, "-p", str(port), "-c", "listen_addresses=127.0.0.1"]
    command += ["-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
    process = subprocess.Popen(  # type: ignore[call-overload]
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **as_user
    )
    address = f"hybrid@127.0.0.1:{port}"
    try:
        for _ in range(200):
            try:
                psycopg.connect(f"postgresql://{address}/postgres").close()
                break
            except psycopg.OperationalError:
                assert process.poll() is None, "the server ended"
                process.poll()
                subprocess.run(["sleep", "0.1"], check=True)
        yield address
    finally:
        process.terminate()
        process.wait(20)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A migrated store on each database."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'hybrid.sqlite'}"
    else:
        address, name = request.getfixturevalue("postgres"), f"t{uuid.uuid4().hex}"
        with psycopg.connect(f"postgresql://{address}/postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
        url = f"postgresql+psycopg://{address}/{name}"
    made = Store(url)
    made.migrate()
    yield made
    made.dispose()
