"""Runs on a board, in a pushed release: every variant loaded, held to its goldens, and placed.

::

    python -B -c SOURCE RELEASE

Prints one JSON document. Uses nothing but what the bundle carries, onnxruntime and numpy.
"""

from __future__ import annotations

import json
import platform
import socket
import sys
from collections import Counter
from pathlib import Path

PROFILE_RUNS = 3
OUTSIDE = ("198.51.100.1", 443)
"""An address that nobody has. Source: RFC 5737, TEST-NET-2."""


def main(release: str) -> None:
    sys.path.insert(0, release)
    import edgepack_loader as loader
    import numpy
    import onnxruntime

    bundle = loader.Bundle(Path(release))
    chosen = loader.load(release)
    document = {
        "arch": platform.machine(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "onnxruntime": onnxruntime.__version__,
        "outside": connect_outside(),
        "chosen": chosen.variant,
        "passed_over": [list(pair) for pair in chosen.passed_over],
        "variants": [prove(loader, bundle, entry) for entry in bundle.list_variants(None)],
    }
    sys.stdout.write(json.dumps(document) + "\n")


def prove(loader, bundle, entry) -> dict:
    """Return how near each golden output of a variant is, and which provider runs its nodes."""
    model = loader.load(bundle.folder, entry["id"])
    nodes = loader.profile_nodes(bundle, entry, PROFILE_RUNS)
    return {
        "id": model.variant,
        "recipe": entry["recipe"],
        "golden_sqnr_db": [model.measure_golden_db(index) for index in range(bundle.goldens)],
        "needed_sqnr_db": entry["min_sqnr_db"],
        "nodes_by_provider": dict(Counter(node["provider"] for node in nodes)),
        "nodes_by_op": dict(Counter(node["op"] for node in nodes)),
    }


def connect_outside() -> str:
    """Return what became of a connection to beyond the board's cable."""
    try:
        socket.create_connection(OUTSIDE, timeout=5).close()
    except OSError as error:
        return error.strerror or str(error)
    return "connected"


if __name__ == "__main__":
    main(sys.argv[1])
