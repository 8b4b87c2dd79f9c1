"""A recorded grid: every variant and setting of three networks, measured on one machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edgepack.bundle.manifest import BundleFile, Manifest, ManifestVariant
from edgepack.bundle.reading import Bundle
from edgepack.devices.harness import JOINED

GRID = Path(__file__).with_suffix(".json")
"""What ``tests/bench/record_grid.py`` wrote."""
_LONG = ("layers", "tried", "outside", "untold", "input_ranges", "slices")
"""Fields of a manifest's variant that no search reads."""


def read_grid() -> dict[str, Any]:
    """Return by network its ``topology``, ``device``, ``variants``, and ``runs`` by candidate."""
    found: dict[str, Any] = json.loads(GRID.read_text())["networks"]
    return found


def strip(entry: ManifestVariant) -> dict[str, Any]:
    """Return a variant of a manifest without what no search reads."""
    values = entry.model_dump(mode="json")
    return {key: value for key, value in values.items() if key not in _LONG}


def make_bundle(network: dict[str, Any]) -> Bundle:
    """Return a bundle with as much of a manifest as a search looks at."""
    variants = [ManifestVariant.model_validate_json(json.dumps(v)) for v in network["variants"]]
    files = [BundleFile.model_construct(path=JOINED, role="harness")]
    manifest = Manifest.model_construct(
        name="grid", version="1.0.0", target="grid", family="linux", variants=variants, files=files
    )
    return Bundle(Path("grid"), manifest, "0" * 64)
