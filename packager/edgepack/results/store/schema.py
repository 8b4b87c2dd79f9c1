"""The tables of the results store, as the newest migration leaves them."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    LargeBinary,
    MetaData,
    String,
    Table,
)

REVISIONS = ("0001",)
"""All that there are, oldest first: the files of ``migrations/versions``."""
VERSION_TABLE = "edgepack_version"

metadata = MetaData()

runs = Table(
    "edgepack_runs",
    metadata,
    Column("id", String, primary_key=True),
    Column("created", String, nullable=False, index=True),
    Column("kind", String, nullable=False),
    Column("bundle", String, nullable=False),
    Column("device", String, nullable=False),
    Column("project", String),
    Column("target", String),
    Column("device_model", String),
    Column("variant", String),
    Column("preset", String),
    Column("scenario", String),
    Column("runtime", String),
    Column("fingerprint", String),
    Column("p50_ms", Double),
    Column("p90_ms", Double),
    Column("low_ms", Double),
    Column("high_ms", Double),
    Column("peak_bytes", BigInteger),
    Column("bundle_bytes", BigInteger),
    Column("canary_ns", Double),
    Column("canary_sha256", String),
    Column("manifest_sha256", String),
    Column("run_p50_ms", Double),
    Column("run_p90_ms", Double),
    Column("metric", String),
    Column("value", Double),
    Column("value_low", Double),
    Column("value_high", Double),
    Column("verdict", String),
    Column("unfinished", Boolean, nullable=False),
)
"""A :class:`~edgepack.results.store.rows.RunRow` each."""

documents = Table(
    "edgepack_documents",
    metadata,
    Column("id", String, ForeignKey("edgepack_runs.id"), primary_key=True),
    Column("json", LargeBinary, nullable=False),
)
"""Each report's JSON as it was made, compressed with zlib; apart, so that listing is quick."""

files = Table("edgepack_files", metadata, Column("name", String, primary_key=True))
"""The report files of before that were taken over; they are not taken a second time."""
