"""Bundles: a directory with a manifest, and its deterministic archive."""

from edgepack.bundle.archive import write_archive
from edgepack.bundle.manifest import MANIFEST, MANIFEST_DIGEST, Manifest
from edgepack.bundle.reading import Bundle, load_bundle, verify
from edgepack.bundle.writing import BundleWriter

__all__ = [
    "MANIFEST",
    "MANIFEST_DIGEST",
    "Bundle",
    "BundleWriter",
    "Manifest",
    "load_bundle",
    "verify",
    "write_archive",
]
