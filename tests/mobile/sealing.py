"""A bundle whose files were changed on purpose, with a manifest that lists them as they are now."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Change = Callable[[np.ndarray, np.ndarray, dict[str, Any]], bytes | None]
"""Changes a palette's values, the bytes that stand for them and its entry, or gives the file."""
ROLES = {"models": "model", "golden": "golden", "files": "file"}
"""By folder, the roles of the files that the code of phone bundles reads."""


def seal(bundle: Path) -> None:
    """List all files that the code reads in ``manifest.json``, with their sizes and digests."""
    manifest = json.loads((bundle / "manifest.json").read_text("utf-8"))
    listed = [each for each in manifest["files"] if each["role"] not in ROLES.values()]
    named = {each["path"] for each in listed}
    for folder, role in ROLES.items():
        for file in sorted((bundle / folder).rglob("*")):
            path = file.relative_to(bundle).as_posix()
            if file.is_file() and path not in named:
                data = file.read_bytes()
                digest = hashlib.sha256(data).hexdigest()
                entry = {"path": path, "sha256": digest, "size_bytes": len(data)}
                listed.append({**entry, "mode": "644", "role": role})
    manifest["files"] = listed
    (bundle / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def pack_input(bundle: Path, change: Change | None = None) -> None:
    """Give the first golden input, of 3 channels of 256 places at most, a palette; change it."""
    manifest = json.loads((bundle / "manifest.json").read_text("utf-8"))
    tensor = manifest["goldens"][0]["inputs"][0]
    channels = np.fromfile(bundle / tensor["path"], tensor["dtype"]).reshape(3, -1)
    # A value that no byte stands for: not all channels have as many then.
    tables = [np.zeros(1, channels.dtype)]
    which = np.empty(channels.shape, np.uint8)
    for number, channel in enumerate(channels):
        table, which[number] = np.unique(channel, return_inverse=True)
        tables.append(table)
    which[0] += 1
    values, sizes = np.concatenate(tables), [len(table) for table in tables[1:]]
    tensor["palette"] = {"step": channels.shape[1], "sizes": [sizes[0] + 1, *sizes[1:]]}
    file = change(values, which, tensor["palette"]) if change else None
    (bundle / tensor["path"]).write_bytes(file or values.tobytes() + which.tobytes())
    (bundle / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    seal(bundle)


def _swap(values: np.ndarray, _: np.ndarray, __: dict[str, Any]) -> None:
    values[[1, -1]] = values[[-1, 1]]


def _lead_beyond(_: np.ndarray, which: np.ndarray, palette: dict[str, Any]) -> None:
    which[-1, -1] = palette["sizes"][-1]


PALETTES: Mapping[str, tuple[Change, str]] = {
    "two values of a palette swapped": (_swap, " dB near the golden one"),
    "a byte beyond its palette": (_lead_beyond, "a byte is beyond its channel's palette"),
    "half a palette": (lambda values, _, __: values.tobytes()[:8], "it has 8 bytes, its palette "),
    "a place too few": (
        lambda values, which, _: values.tobytes() + which.tobytes()[:-1],
        "golden/0",
    ),
    "a palette without channels": (
        lambda _, __, palette: palette.update(sizes=[]),
        " and the sizes []",
    ),
    "a palette without a step": (
        lambda _, __, palette: palette.update(step=0),
        "a palette cannot have the step 0 and the sizes [",
    ),
    "a palette of more than a byte": (
        lambda _, __, palette: palette.update(sizes=[1, 257]),
        " and the sizes [1, 257]",
    ),
}
"""What is done to a golden input, and what is said of it."""
