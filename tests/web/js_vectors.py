"""Pictures, frames, answers and texts in JavaScript, in Node, as Python has them.

The runtime of the templates is run as it is: it needs nothing of onnxruntime for these.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from edgepack.base.resources import find_templates_dir

from tests.mobile.comparing import (
    compare_answers,
    compare_frames,
    compare_images,
    compare_prescaled,
    compare_tokens,
)
from tests.mobile.kotlin_models import every_half, some_floats
from tests.mobile.kotlin_vectors import write_transparent
from tests.mobile.proofs import Proof, require
from tests.mobile.refusals import (
    compare_refused,
    write_refused_frames,
    write_refused_options,
    write_refused_outputs,
)
from tests.mobile.vectors import write as write_vectors
from tests.web.node import run_node

HERE = Path(__file__).parent


def copy_runtime(package: Path) -> Path:
    """Copy the code that all bundles share into a folder that Node takes for a package."""
    shutil.copytree(find_templates_dir() / "web" / "runtime", package / "runtime")
    (package / "package.json").write_text('{"type": "module"}')
    return package


def prove(work: Path) -> str:
    """Run the code on all cases, and compare."""
    cases, out = work / "cases", work / "out"
    write_vectors(cases)
    write_transparent(cases / "images" / "transparent")
    write_refused_outputs(cases / "refused")
    write_refused_frames(cases / "refused")
    write_refused_options(cases / "refused")
    run_node(HERE / "js" / "vectors.js", copy_runtime(work / "package"), cases, out)
    comparisons = (
        compare_images,
        compare_frames,
        compare_prescaled,
        compare_answers,
        compare_refused,
        compare_tokens,
    )
    return "; ".join(compare(cases, out) for compare in comparisons)


def prove_halves(work: Path) -> str:
    """Convert every float16 and what lies between, and compare with numpy's."""
    numbers, floats = every_half(), some_floats()
    numbers.tofile(work / "halves.bin")
    floats.tofile(work / "floats.bin")
    run_node(HERE / "js" / "halves.js", copy_runtime(work / "package"), work)
    with np.errstate(over="ignore"):
        halves, rounded = numbers.astype(np.float32), floats.astype(np.float16)
    for name, wanted in (("halves", halves.tobytes()), ("floats", rounded.tobytes())):
        found = (work / f"{name}.out").read_bytes()
        require(found == wanted, f"{name} are not those of numpy")
    return f"{len(numbers)} float16 and {len(floats)} float32"


PROOFS = (
    Proof("pictures, answers and texts are those of Python", prove),
    Proof("float16 are those of numpy", prove_halves),
)
