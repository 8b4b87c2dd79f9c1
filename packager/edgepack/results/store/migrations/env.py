"""Run by alembic, in the transaction of the connection that it is handed."""

from __future__ import annotations

from alembic import context

from edgepack.results.store.schema import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
