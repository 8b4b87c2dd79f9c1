"""The first tables: reports, what is said of them in short, and which files were taken over."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make them."""
    op.create_table(
        "edgepack_runs",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("created", sa.String, nullable=False, index=True),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("bundle", sa.String, nullable=False),
        sa.Column("device", sa.String, nullable=False),
        sa.Column("project", sa.String),
        sa.Column("target", sa.String),
        sa.Column("device_model", sa.String),
        sa.Column("variant", sa.String),
        sa.Column("preset", sa.String),
        sa.Column("scenario", sa.String),
        sa.Column("runtime", sa.String),
        sa.Column("fingerprint", sa.String),
        sa.Column("p50_ms", sa.Double),
        sa.Column("p90_ms", sa.Double),
        sa.Column("low_ms", sa.Double),
        sa.Column("high_ms", sa.Double),
        sa.Column("peak_bytes", sa.BigInteger),
        sa.Column("bundle_bytes", sa.BigInteger),
        sa.Column("canary_ns", sa.Double),
        sa.Column("canary_sha256", sa.String),
        sa.Column("manifest_sha256", sa.String),
        sa.Column("run_p50_ms", sa.Double),
        sa.Column("run_p90_ms", sa.Double),
        sa.Column("metric", sa.String),
        sa.Column("value", sa.Double),
        sa.Column("value_low", sa.Double),
        sa.Column("value_high", sa.Double),
        sa.Column("verdict", sa.String),
        sa.Column("unfinished", sa.Boolean, nullable=False),
    )
    op.create_table(
        "edgepack_documents",
        sa.Column("id", sa.String, sa.ForeignKey("edgepack_runs.id"), primary_key=True),
        sa.Column("json", sa.LargeBinary, nullable=False),
    )
    op.create_table("edgepack_files", sa.Column("name", sa.String, primary_key=True))
