"""Alembic's environment: runs on the connection that `Store.migrate` hands over."""

from __future__ import annotations

from alembic import context
from sqlmodel import SQLModel

from hybrid.store import tables  # noqa: F401  (registers the tables)

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=SQLModel.metadata,
    render_as_batch=connection.dialect.name == "sqlite",
)
with context.begin_transaction():
    context.run_migrations()
