"""How a results store of an older edgepack becomes one of this one, for alembic."""
