"""A library with a custom operator, compiled against onnxruntime's own header, and its model.

The header is Debian's (``libonnxruntime-dev``, MIT licence), for no wheel has it: the one that is
installed, else one that is fetched once.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from edgepack.base.processes import run_program
from edgepack.errors import ToolError
from onnx import TensorProto, helper

from tests.support.nets.tiny_models import save
from tests.support.servers.debian_roots import find_mirror, locked

DOMAIN = "test.bend"
SOURCE = Path(__file__).with_name("custom_op.c")
INSTALLED = Path("/usr/include/onnxruntime")
KEPT = Path(__file__).resolve().parents[3] / ".debian" / "onnxruntime-headers"
RELEASE = "trixie"
"""The first release of Debian that has the package; onnxruntime is 1.21 there."""
_MACHINE_AT = 18
"""Where an ELF file has the number of its processor (elf(5), e_machine)."""
AARCH64 = 183


def find_headers() -> Path:
    """Return a folder with onnxruntime_c_api.h; skip where there is none, and fail in CI."""
    why = "" if shutil.which("cc") else "there is no C compiler"
    try:
        if not why:
            return INSTALLED if (INSTALLED / "onnxruntime_c_api.h").exists() else _fetch_headers()
    except ToolError as error:
        why = error.problem
    if os.environ.get("CI"):
        pytest.fail(f"{why}; CI must not skip these tests")
    pytest.skip(why)


def _fetch_headers() -> Path:
    with locked(KEPT):
        if not (found := sorted(KEPT.rglob("onnxruntime_c_api.h"))):
            for name in ("lists/partial", "cache/archives/partial"):
                (KEPT / name).mkdir(parents=True, exist_ok=True)
            (KEPT / "sources.list").write_text(f"{find_mirror(RELEASE)}\n")
            apt = ["apt-get", "-qq", "-o", f"Dir::Etc::sourcelist={KEPT}/sources.list"]
            apt += ["-o", "Dir::Etc::sourceparts=-", "-o", f"Dir::State::lists={KEPT}/lists"]
            apt += ["-o", f"Dir::Cache={KEPT}/cache"]
            _run([*apt, "update"])
            _run([*apt, "download", "libonnxruntime-dev"])
            [package] = KEPT.glob("*.deb")
            _run(["dpkg", "-x", str(package), str(KEPT / "root")])
            found = sorted(KEPT.rglob("onnxruntime_c_api.h"))
        return found[0].parent


def _run(argv: Sequence[str]) -> None:
    done = run_program(argv, timeout_s=300, cwd=KEPT)
    if done.exit_code:
        raise ToolError(f"{' '.join(argv[-2:])} failed{done.last_lines}", hint="see there")


def compile_library(
    path: Path, *arguments: str, source: Path = SOURCE, compiler: str = "cc"
) -> Path:
    """Compile a shared library; arguments are the compiler's."""
    include = f"-I{find_headers()}"
    argv = [compiler, "-shared", "-fPIC", "-O1", include, "-x", "c", str(source), "-x", "none"]
    done = run_program([*argv, *arguments, "-o", str(path)], timeout_s=120)
    assert not done.exit_code, done.last_lines
    return path


def write_other_machine(library: Path, path: Path, machine: int = AARCH64) -> Path:
    """Write a library that says it is for another processor."""
    data = bytearray(library.read_bytes())
    data[_MACHINE_AT : _MACHINE_AT + 2] = machine.to_bytes(2, "little")
    path.write_bytes(data)
    return path


def save_model(path: Path, op: str = "Bend") -> Path:
    """Write a model [n, 3, 8, 8] to [n, 4] with two nodes of a custom operator.

    What they make has no type in the file: onnx does not know the operator.
    """
    random = np.random.default_rng(3)
    shapes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 8, 3, 3), "w3": (8, 4)}
    weights = [(n, 0.4 * random.standard_normal(s).astype(np.float32)) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1] * 4),
        helper.make_node(op, ["c1"], ["a1"], "bend1", domain=DOMAIN, bend=0.1),
        helper.make_node("Conv", ["a1", "w2"], ["c2"], "conv2", pads=[1] * 4),
        helper.make_node(op, ["c2"], ["a2"], "bend2", domain=DOMAIN),
        helper.make_node("GlobalAveragePool", ["a2"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
        helper.make_node("MatMul", ["f", "w3"], ["y"], "linear"),
    ]
    ends = [("x", TensorProto.FLOAT, ["n", 3, 8, 8])], [("y", TensorProto.FLOAT, ["n", 4])]
    save(path, nodes, *ends, weights)
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    onnx.save(model, path)
    return path


def write_project(folder: Path, *lines: str, op: str = "Bend") -> Path:
    """Write a project with the model and samples; its lines say the rest."""
    save_model(folder / "net.onnx", op)
    random = np.random.default_rng(4)
    for name, count in (("cal", 8), ("eval", 16)):
        samples = random.standard_normal((count, 3, 8, 8)).astype(np.float32)
        np.savez(folder / f"{name}.npz", x=samples)
    text = [
        "schema_version: 1",
        "name: net",
        "model: net.onnx",
        "dims: {n: 1}",
        "samples: {calibration: {path: cal.npz}, evaluation: {path: eval.npz}}",
        *lines,
    ]
    path = folder / "edgepack.yaml"
    path.write_text("\n".join(text) + "\n")
    return path
