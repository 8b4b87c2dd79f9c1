"""A bundle's golden samples: how many are shipped, and their tensors."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from edgepack.builder.job import JudgedBundle
from edgepack.bundle.manifest import Golden, GoldenTensor
from edgepack.bundle.writing import BundleWriter
from edgepack.steps.proofs.goldens import read_goldens

_GOLDEN_BYTES = 1 << 22
"""Of a bundle's golden tensors together, or as much as its models have, if that is more."""


def write_goldens(judged: JudgedBundle, writer: BundleWriter) -> list[Golden]:
    """Write inputs once and outputs per variant; return the index.

    Args:
        judged: The bundle.
        writer: Has the bundle's models already: how many samples are shipped follows from them.
    """
    folders = {each.variant.id: judged.find_folder(each.goldens) for each in judged.shipped}
    indexes = {variant: read_goldens(folder)["goldens"] for variant, folder in folders.items()}
    first = next(iter(folders))
    models = sum(file.size_bytes for file in writer.files.values() if file.role == "model")
    sizes = [
        _count_bytes(folders[first], golden["inputs"])
        + sum(_count_bytes(folders[variant], own[n]["outputs"]) for variant, own in indexes.items())
        for n, golden in enumerate(indexes[first])
    ]
    goldens = []
    for n, golden in enumerate(indexes[first][: _count_goldens(judged, sizes, models)]):
        inputs = [
            _add_tensor(writer, folders[first], f"golden/{n}/input-{k}.bin", entry)
            for k, entry in enumerate(golden["inputs"])
        ]
        outputs = {
            variant: [
                _add_tensor(writer, folder, f"golden/{n}/{variant}/output-{k}.bin", entry)
                for k, entry in enumerate(indexes[variant][n]["outputs"])
            ]
            for variant, folder in folders.items()
        }
        goldens.append(Golden(inputs=inputs, outputs=outputs))
    return goldens


def _count_goldens(judged: JudgedBundle, sizes: list[int], models: int) -> int:
    """Return how many samples are shipped: at least one, and no more than the models are large."""
    most = max(_GOLDEN_BYTES, models)
    count = sum(total <= most for total in itertools.accumulate(sizes))
    size = judged.profile.bundle
    return max(1, min(count, size.goldens) if size else count)


def _count_bytes(folder: Path, entries: Iterable[dict[str, str]]) -> int:
    return sum((folder / entry["file"]).stat().st_size for entry in entries)


def _add_tensor(
    writer: BundleWriter, folder: Path, path: str, entry: dict[str, Any]
) -> GoldenTensor:
    data = (folder / entry["file"]).read_bytes()
    written = writer.add(path, data, role="golden")
    given = {key: value for key, value in entry.items() if key != "file"}
    return GoldenTensor.model_validate({"path": written, **given})
