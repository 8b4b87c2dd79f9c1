"""``edgepack --help`` against ``python -c "import typer"``: whole processes, same interpreter."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from edgepack.base.statistics import median

from tests.bench.measuring import EDGEPACK, Row, interleaved, process_seconds, ratio_text

PAIRS = 30


def measure() -> Iterator[Row]:
    """Yield one row."""
    ours, theirs = [EDGEPACK, "--help"], [sys.executable, "-c", "import typer"]
    for argv in (ours, theirs):  # byte code and file cache are warm for both
        process_seconds(argv)
    pairs = interleaved(lambda: process_seconds(ours), lambda: process_seconds(theirs), PAIRS)
    help_s, typer_s = (median(side) for side in zip(*pairs, strict=True))
    yield Row(
        "edgepack --help / import typer",
        f"{PAIRS} pairs",
        ratio_text(pairs),
        "at most 1.5",
        f"medians {help_s * 1e3:.0f} ms, {typer_s * 1e3:.0f} ms",
    )
