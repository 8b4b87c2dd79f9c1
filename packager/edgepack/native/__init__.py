"""Measures bundles by a native program, on phones and on boards without Python."""
