"""Measures bundles on phones, in native code. Never run on a phone: docs/phones.md."""
