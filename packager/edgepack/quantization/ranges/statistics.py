"""What one tensor held over all calibration samples, and the file that keeps it."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import StepError

_NO_AXIS = -1
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True, eq=False)
class TensorStatistics:
    """The values of one tensor over all samples, each rounded to float32.

    The bins depend on the values alone, never on the order in which they came: ``width`` is the
    smallest power of two with which all values fit into the largest number of bins that
    :class:`edgepack.quantization.ranges.histogram.Histogram` allows.
    """

    low: float
    """The smallest value."""
    high: float
    """The largest value."""
    counts: Array
    """int64 (bins,): how many values lie in each bin. The first and the last are not 0."""
    first: int
    """``counts[k]`` counts the values v with ``floor(v / width) == first + k``."""
    width: float
    """Of a bin, in the tensor's unit: a power of two; 0.0 if all values are 0, which is one bin."""
    channel_low: Array | None = None
    """float32 (channels,): the smallest value of each channel. None where a tensor has no channels:
    below rank 3, or where their number differs between samples."""
    channel_high: Array | None = None
    """float32 (channels,): the largest value of each channel."""
    channel_axis: int | None = None
    """Axis 1 from rank 4 on; for rank 3 the shorter of axes 1 and 2."""


def write_statistics(statistics: Mapping[str, TensorStatistics], path: Path) -> None:
    """Write statistics as an ``.npz`` whose bytes depend on nothing but the statistics.

    Names are sorted, bins that count nothing are left out, and integers are as narrow as their
    values allow. There are no pickled objects in it.
    """
    names = sorted(statistics)
    tensors = [statistics[name] for name in names]
    filled = [np.flatnonzero(tensor.counts) for tensor in tensors]
    counts = [tensor.counts[bins] for tensor, bins in zip(tensors, filled, strict=True)]
    channels = [_stack_channels(tensor) for tensor in tensors]
    arrays: dict[str, Array] = {
        "names": np.frombuffer(json.dumps(names).encode(), dtype=np.uint8),
        "low": np.array([tensor.low for tensor in tensors], dtype=np.float64),
        "high": np.array([tensor.high for tensor in tensors], dtype=np.float64),
        "width": np.array([tensor.width for tensor in tensors], dtype=np.float64),
        "first": np.array([tensor.first for tensor in tensors], dtype=np.int64),
        "filled": _narrow_type(np.array([len(bins) for bins in filled], dtype=np.int64)),
        "bins": _narrow_type(_join_arrays(filled, np.int64)),
        "counts": _narrow_type(_join_arrays(counts, np.int64)),
        "channel_axis": np.array(
            [_NO_AXIS if t.channel_axis is None else t.channel_axis for t in tensors],
            dtype=np.int8,
        ),
        "channels": _narrow_type(np.array([pair.shape[1] for pair in channels], dtype=np.int64)),
        "channel_low": _join_arrays([pair[0] for pair in channels], np.float32),
        "channel_high": _join_arrays([pair[1] for pair in channels], np.float32),
    }
    with zipfile.ZipFile(path, "w") as file:
        for name, array in arrays.items():
            # A ZipInfo that is made from a name alone has a fixed date.
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.compress_type = zipfile.ZIP_DEFLATED
            with file.open(entry, "w") as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


def read_statistics(path: Path) -> dict[str, TensorStatistics]:
    """Return what :func:`write_statistics` wrote, by the tensors' names in sorted order.

    Raises:
        StepError: The file is missing or is not such a file.
    """
    try:
        # Opened here: np.load leaves a damaged file open.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return _unpack_statistics(arrays)
    except (OSError, EOFError, ValueError, KeyError, IndexError, *_ZIP_ERRORS) as error:
        raise StepError(
            f"cannot read the statistics of the calibration in {str(path)!r}: {error}",
            hint="build again with --no-cache",
        ) from error


def _unpack_statistics(arrays: Mapping[str, Array]) -> dict[str, TensorStatistics]:
    names = json.loads(arrays["names"].tobytes())
    ends = np.cumsum(arrays["filled"], dtype=np.int64)[:-1]
    bins = np.split(arrays["bins"].astype(np.int64), ends)
    counts = np.split(arrays["counts"].astype(np.int64), ends)
    ends = np.cumsum(arrays["channels"], dtype=np.int64)[:-1]
    lows = np.split(arrays["channel_low"], ends)
    highs = np.split(arrays["channel_high"], ends)
    found = {}
    for k, name in enumerate(names):
        dense = np.zeros(bins[k][-1] + 1, dtype=np.int64)
        dense[bins[k]] = counts[k]
        axis = int(arrays["channel_axis"][k])
        has_channels = axis != _NO_AXIS
        found[name] = TensorStatistics(
            low=float(arrays["low"][k]),
            high=float(arrays["high"][k]),
            counts=dense,
            first=int(arrays["first"][k]),
            width=float(arrays["width"][k]),
            channel_low=lows[k] if has_channels else None,
            channel_high=highs[k] if has_channels else None,
            channel_axis=axis if has_channels else None,
        )
    return found


def _stack_channels(tensor: TensorStatistics) -> Array:
    """Return float32 (2, channels): the lowest and highest values, none if there are none."""
    if tensor.channel_low is None or tensor.channel_high is None:
        return np.zeros((2, 0), dtype=np.float32)
    return np.stack([tensor.channel_low, tensor.channel_high]).astype(np.float32)


def _join_arrays(parts: list[Array], dtype: type[np.generic]) -> Array:
    return np.concatenate([np.zeros(0, dtype), *parts])


def _narrow_type(whole: Array) -> Array:
    """Return natural numbers in the narrowest type that holds them all."""
    return whole.astype(np.min_scalar_type(int(whole.max(initial=0))))
