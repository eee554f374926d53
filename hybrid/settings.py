"""Where Hybrid keeps its state and how it listens: the only place that reads the environment."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

RAY_PACKAGE_LIMIT_BYTES = 100 * 1024 * 1024
_LOOPBACK = ("127.", "localhost", "::1")


class Settings(BaseSettings):
    """Every setting can be given as `HYBRID_<NAME>`; command-line flags win over it."""

    model_config = SettingsConfigDict(env_prefix="HYBRID_", extra="ignore")

    home: Path = Field(
        default=Path("~/.local/share/hybrid"),
        description="Folder of the database, packages, logs and lease state.",
    )
    database_url: str = Field(
        default="", description="SQLAlchemy address; empty: SQLite in the home folder."
    )
    host: str = Field(default="127.0.0.1", description="Address that the gateway listens on.")
    port: int = Field(default=8265, description="Port that the gateway listens on.")
    auth: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Ask for a token: auto means on unless the gateway listens on loopback.",
    )
    package_limit_bytes: int = Field(
        default=RAY_PACKAGE_LIMIT_BYTES, description="Largest working_dir package accepted."
    )
    policy: str = Field(
        default="", description="Policy to start with; empty: the one last in force, or default."
    )
    ray_address: str = Field(
        default="", description="host:port of the standing Ray cluster; empty: no pool."
    )
    ray_token: str = Field(default="", description="Token of the standing Ray cluster, if any.")
    tick_seconds: float = Field(
        default=2.0, description="Longest pause between two rounds of the planner."
    )
    crash_at: str = Field(
        default="", description="For tests: kill -9 this process at the Nth occurrence of a step."
    )
    address: str = Field(
        default="http://127.0.0.1:8265", description="Gateway that the CLI talks to."
    )
    token: str = Field(default="", description="Token that the CLI sends.")

    @cached_property
    def state_dir(self) -> Path:
        return self.home.expanduser()

    @property
    def store_url(self) -> str:
        return self.database_url or f"sqlite:///{self.state_dir / 'hybrid.sqlite'}"

    @property
    def packages_dir(self) -> Path:
        return self.state_dir / "packages"

    @property
    def logs_dir(self) -> Path:
        return self.state_dir / "logs"

    @property
    def policies_dir(self) -> Path:
        return self.state_dir / "policies"

    @property
    def auth_required(self) -> bool:
        if self.auth == "auto":
            return not self.host.startswith(_LOOPBACK)
        return self.auth == "on"
