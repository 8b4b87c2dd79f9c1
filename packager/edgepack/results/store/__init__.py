"""Keeps reports: the database, its rows, documents, imports and exports."""
