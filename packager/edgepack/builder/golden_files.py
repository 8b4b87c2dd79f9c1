"""A bundle's golden samples: how many are shipped, and their tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.builder.job import JudgedBundle
from edgepack.bundle.manifest import Golden, GoldenTensor, Palette
from edgepack.bundle.writing import BundleWriter
from edgepack.steps.proofs.goldens import read_goldens

_MOST_CHANNELS = 4
"""Of a picture."""
_MOST_VALUES = 256
"""Of a channel: what a byte tells apart."""
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
    # Apps are downloaded. Boards start more often than they are pushed to, from files as they are.
    packed = judged.profile.family != "linux"
    goldens = []
    for n, golden in enumerate(indexes[first][: _count_goldens(judged, sizes, models)]):
        inputs = [
            _add_tensor(writer, folders[first], f"golden/{n}/input-{k}.bin", entry, packed=packed)
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
    writer: BundleWriter, folder: Path, path: str, entry: dict[str, Any], *, packed: bool = False
) -> GoldenTensor:
    data = (folder / entry["file"]).read_bytes()
    given = {key: value for key, value in entry.items() if key != "file"}
    if packed and (found := pack_values(data, entry["dtype"], entry["shape"])):
        data, given["palette"] = found
    written = writer.add(path, data, role="golden")
    return GoldenTensor.model_validate({"path": written, **given})


def pack_values(data: bytes, dtype: str, shape: Sequence[int]) -> tuple[bytes, Palette] | None:
    """Return a tensor's file with a palette; None where it would not be smaller than half.

    A tensor that was made of a picture has at most 256 different values a channel. They are told
    apart by their bits, so that the very same come back.

    Args:
        data: Little-endian values in C order.
        dtype: Their numpy dtype.
        shape: The tensor's.
    """
    width = np.dtype(dtype).itemsize
    bits = np.frombuffer(data, f"<u{width}")
    axes = [axis for axis in (1, len(shape) - 1) if 0 < axis < len(shape)]
    ways = [(shape[axis], math.prod(shape[axis + 1 :])) for axis in axes]
    for channels, step in [(1, 1), *ways] if bits.size else ():
        if channels > _MOST_CHANNELS:
            continue
        by_channel = np.moveaxis(bits.reshape(-1, channels, step), 1, 0)
        found = [np.unique(channel, return_inverse=True) for channel in by_channel]
        sizes = [values.size for values, _ in found]
        if max(sizes) > _MOST_VALUES or bits.size + width * sum(sizes) >= len(data) / 2:
            continue
        which = np.empty((bits.size // channels // step, channels, step), np.uint8)
        for place, (_, numbers) in enumerate(found):
            which[:, place] = numbers.reshape(-1, step)
        tables = b"".join(values.tobytes() for values, _ in found)
        return tables + which.tobytes(), Palette(step=step, sizes=sizes)
    return None
