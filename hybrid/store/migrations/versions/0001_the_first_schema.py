"""the first schema"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from hybrid.store.types import ExactDecimal, UtcDateTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_token",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("note", sa.String(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=True),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("sha256"),
    )
    op.create_table(
        "attempt",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("lease_id", sa.String(), nullable=False),
        sa.Column("ray_submission_id", sa.String(), nullable=False),
        sa.Column(
            "state",
            sa.String(16),
            nullable=False,
        ),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=True),
        sa.Column("ended_at", UtcDateTime(), nullable=True),
        sa.Column("cause", sa.String(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("attempt", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_attempt_job_id"), ["job_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_attempt_lease_id"), ["lease_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_attempt_state"), ["state"], unique=False)

    op.create_table(
        "card_mark",
        sa.Column("uuid", sa.String(), nullable=False),
        sa.Column("node_id", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("uuid"),
    )
    op.create_table(
        "charge",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("lease_id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("place", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("start_at", UtcDateTime(), nullable=False),
        sa.Column("end_at", UtcDateTime(), nullable=False),
        sa.Column("units", sa.Integer(), nullable=False),
        sa.Column("unit", sa.String(), nullable=False),
        sa.Column("seconds", ExactDecimal(), nullable=False),
        sa.Column("rate_per_hour", ExactDecimal(), nullable=False),
        sa.Column("rate_source", sa.String(), nullable=False),
        sa.Column("rate_as_of", UtcDateTime(), nullable=False),
        sa.Column("amount", ExactDecimal(), nullable=False),
        sa.Column("currency", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("charge", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_charge_job_id"), ["job_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_charge_lease_id"), ["lease_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_charge_start_at"), ["start_at"], unique=False)

    op.create_table(
        "decision",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("choice", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=True),
        sa.Column("expected_start", UtcDateTime(), nullable=True),
        sa.Column("expected_cost", ExactDecimal(), nullable=True),
        sa.Column("currency", sa.String(), nullable=True),
        sa.Column("inputs", sa.JSON(), nullable=False),
        sa.Column("alternatives", sa.JSON(), nullable=False),
        sa.Column("outcome", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("decision", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_decision_job_id"), ["job_id"], unique=False)

    op.create_table(
        "event",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("entity", sa.String(), nullable=False),
        sa.Column("entity_id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=True),
        sa.Column("from_state", sa.String(), nullable=False),
        sa.Column("to_state", sa.String(), nullable=False),
        sa.Column("cause", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("event", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_event_entity_id"), ["entity_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_event_job_id"), ["job_id"], unique=False)

    op.create_table(
        "job",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column(
            "state",
            sa.String(16),
            nullable=False,
        ),
        sa.Column("message", sa.String(), nullable=False),
        sa.Column("entrypoint", sa.String(), nullable=False),
        sa.Column("runtime_env", sa.JSON(), nullable=False),
        sa.Column("user_metadata", sa.JSON(), nullable=False),
        sa.Column("entrypoint_num_cpus", sa.Float(), nullable=True),
        sa.Column("entrypoint_num_gpus", sa.Float(), nullable=True),
        sa.Column("entrypoint_memory", sa.Integer(), nullable=True),
        sa.Column("entrypoint_resources", sa.JSON(), nullable=True),
        sa.Column("entrypoint_label_selector", sa.JSON(), nullable=True),
        sa.Column("requirements", sa.JSON(), nullable=False),
        sa.Column("environment", sa.String(), nullable=False),
        sa.Column("packages", sa.JSON(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("submitted_at", UtcDateTime(), nullable=False),
        sa.Column("queued_at", UtcDateTime(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=True),
        sa.Column("ended_at", UtcDateTime(), nullable=True),
        sa.Column("stop_requested_at", UtcDateTime(), nullable=True),
        sa.Column("stop_reason", sa.String(), nullable=False),
        sa.Column("not_before", UtcDateTime(), nullable=True),
        sa.Column("lease_id", sa.String(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("boot_failures", sa.Integer(), nullable=False),
        sa.Column("error_type", sa.String(), nullable=True),
        sa.Column("driver_exit_code", sa.Integer(), nullable=True),
        sa.Column("ray_job_id", sa.String(), nullable=True),
        sa.Column("driver_info", sa.JSON(), nullable=True),
        sa.Column("driver_node_id", sa.String(), nullable=True),
        sa.Column("driver_agent_http_address", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("job", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_job_ray_job_id"), ["ray_job_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_job_state"), ["state"], unique=False)
        batch_op.create_index("ix_job_submitted_at", ["submitted_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_job_user"), ["user"], unique=False)

    op.create_table(
        "launch_miss",
        sa.Column("offer_key", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("until", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("offer_key"),
    )
    op.create_table(
        "lease",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column(
            "state",
            sa.String(16),
            nullable=False,
        ),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("environment", sa.String(), nullable=False),
        sa.Column("gang", sa.JSON(), nullable=False),
        sa.Column("shares", sa.JSON(), nullable=False),
        sa.Column("offer", sa.JSON(), nullable=True),
        sa.Column("instance_ids", sa.JSON(), nullable=False),
        sa.Column("token", sa.String(), nullable=False),
        sa.Column("cluster_token", sa.String(), nullable=False),
        sa.Column("endpoint_url", sa.String(), nullable=True),
        sa.Column("job_id", sa.String(), nullable=True),
        sa.Column("units", sa.Integer(), nullable=False),
        sa.Column("rate_per_hour", ExactDecimal(), nullable=False),
        sa.Column("rate_currency", sa.String(), nullable=False),
        sa.Column("rate_unit", sa.String(), nullable=False),
        sa.Column("rate_source", sa.String(), nullable=False),
        sa.Column("rate_as_of", UtcDateTime(), nullable=False),
        sa.Column("requested_at", UtcDateTime(), nullable=False),
        sa.Column("ready_at", UtcDateTime(), nullable=True),
        sa.Column("idle_since", UtcDateTime(), nullable=True),
        sa.Column("releasing_at", UtcDateTime(), nullable=True),
        sa.Column("released_at", UtcDateTime(), nullable=True),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("hard_end_at", UtcDateTime(), nullable=False),
        sa.Column("phase_started_at", UtcDateTime(), nullable=False),
        sa.Column("acquired", sa.Boolean(), nullable=True),
        sa.Column("failure", sa.String(), nullable=False),
        sa.Column("failure_kind", sa.String(), nullable=False),
        sa.Column("release_reason", sa.String(), nullable=False),
        sa.Column("message", sa.String(), nullable=False),
        sa.Column("remains", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("lease", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_lease_job_id"), ["job_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_lease_state"), ["state"], unique=False)

    op.create_table(
        "meta",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "node_mark",
        sa.Column("node_id", sa.String(), nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("by", sa.String(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("node_id"),
    )
    op.create_table(
        "policy_applied",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("by", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )


def downgrade() -> None:
    op.drop_table("policy_applied")
    op.drop_table("node_mark")
    op.drop_table("meta")
    with op.batch_alter_table("lease", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_lease_state"))
        batch_op.drop_index(batch_op.f("ix_lease_job_id"))

    op.drop_table("lease")
    op.drop_table("launch_miss")
    with op.batch_alter_table("job", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_job_user"))
        batch_op.drop_index("ix_job_submitted_at")
        batch_op.drop_index(batch_op.f("ix_job_state"))
        batch_op.drop_index(batch_op.f("ix_job_ray_job_id"))

    op.drop_table("job")
    with op.batch_alter_table("event", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_event_job_id"))
        batch_op.drop_index(batch_op.f("ix_event_entity_id"))

    op.drop_table("event")
    with op.batch_alter_table("decision", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_decision_job_id"))

    op.drop_table("decision")
    with op.batch_alter_table("charge", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_charge_start_at"))
        batch_op.drop_index(batch_op.f("ix_charge_lease_id"))
        batch_op.drop_index(batch_op.f("ix_charge_job_id"))

    op.drop_table("charge")
    op.drop_table("card_mark")
    with op.batch_alter_table("attempt", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_attempt_state"))
        batch_op.drop_index(batch_op.f("ix_attempt_lease_id"))
        batch_op.drop_index(batch_op.f("ix_attempt_job_id"))

    op.drop_table("attempt")
    op.drop_table("api_token")
