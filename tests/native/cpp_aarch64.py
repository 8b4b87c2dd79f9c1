"""The C++ library and the Python loader on aarch64, which is emulated: the same choices and bits.

Both run in one root file system of Debian 12, with the same wheel's library. Its ``/sys`` is empty:
onnxruntime reads processors there, and this machine's are others.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from edgepack.base.processes import ProgramResult, run_program
from edgepack.errors import ToolError
from edgepack.ondevice.runtime import edgepack_loader as loader

from tests.lab import host
from tests.mobile.proofs import NotHeldError, Proof, require
from tests.mobile.signatures import BUCKETS, DETECTOR, DYNAMIC_BATCH, HALF, SEVERAL_INPUTS
from tests.native.cpp_models import list_feeds, list_usable
from tests.native.programs import (
    KEPT,
    RUN_TIMEOUT_S,
    Opened,
    build_bundle,
    compile_program,
    find_library,
    read_opened,
    read_tensors,
    write_tensors,
)
from tests.support.servers.debian_roots import debian_root, locked

TARGET = "linux-aarch64"
COMPILER = "aarch64-linux-gnu-g++"
BUNDLES = (SEVERAL_INPUTS, DYNAMIC_BATCH, HALF, BUCKETS, DETECTOR)
PYTHON = "3.11"
"""Debian 12's, for which the wheels are."""
MOST_FEEDS = 4
INSTALL_S = 600.0

# Runs what the host wrote: by the folder of a bundle and a variant, inputs that lie beside.
_BY_PYTHON = """
import json, sys
sys.path[:0] = ["/work/site"]
for line in open("/work/runs"):
    bundle, variant, folder, count = line.split()
    sys.path.insert(0, bundle)
    import edgepack_loader as loader
    import numpy as np
    model = loader.load(bundle, variant)
    passed_over = [list(each) for each in model.passed_over]
    said = [model.variant, passed_over, model.golden_sqnr_db]
    for number in range(int(count)):
        feed = dict(np.load(f"{folder}/{number}.npz"))
        np.savez(f"{folder}/python-{number}.npz", **model(feed))
    print(json.dumps(said), flush=True)
"""
# Arguments: the root file system, the folder for /work, the program's.
_ENTER = """
root=$1 work=$2
shift 2
mkdir -p "$root/work" && mount -t proc proc "$root/proc" && mount --bind "$work" "$root/work" &&
exec chroot "$root" env -i HOME=/root PATH=/usr/bin:/bin "$@"
"""


def find_root() -> Path:
    """Return the root file system; it is made once. Needs the kernel to start its programs."""
    return debian_root(KEPT, "bookworm", ("libstdc++6", "python3"), "arm64")


def find_site() -> Path:
    """Return a folder with onnxruntime and numpy of this machine's versions, for aarch64."""
    version = find_library().name.removeprefix("libonnxruntime.so.")
    site = KEPT / f"site-aarch64-{version}-{np.__version__}"
    with locked(KEPT / "sites"):
        if not site.is_dir():
            new = site.with_name(f"{site.name}.new")
            argv = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(new)]
            argv += ["--only-binary=:all:", "--python-version", PYTHON, "--implementation=cp"]
            argv += ["--platform", "manylinux_2_28_aarch64", "--platform", "manylinux_2_27_aarch64"]
            argv += [f"onnxruntime=={version}", f"numpy=={np.__version__}"]
            done = run_program(argv, timeout_s=INSTALL_S)
            require(done.exit_code == 0, done.stderr.decode("utf-8", "replace")[-2000:])
            new.rename(site)
    return site


def enter(root: Path, work: Path, *words: str, timeout_s: float = RUN_TIMEOUT_S) -> ProgramResult:
    """Run a program of the root file system, with a folder as ``/work``."""
    isolated = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _ENTER, "sh"]
    return run_program([*isolated, str(root), str(work), *words], timeout_s=timeout_s)


def compare(work: Path) -> str:
    """Each variant of each bundle is chosen for the same reasons and gives the same bits."""
    runs = [
        (build_bundle(signature, TARGET), variant)
        for signature in BUNDLES
        for variant in list_usable(build_bundle(signature, TARGET))
    ]
    program = compile_program("describe.cc", "-ffp-contract=off", compiler=COMPILER)
    lines, counts = [], []
    for number, (bundle, variant) in enumerate(runs):
        counts.append(write_run(bundle, variant, work / f"run-{number}"))
        lines.append(f"/work/{bundle.name} {variant} /work/run-{number} {counts[-1]}\n")
    (work / "runs").write_text("".join(lines))
    (work / "by_python.py").write_text(_BY_PYTHON)
    for source, name in [(program, "describe"), (find_site(), "site")] + [
        (bundle, bundle.name) for bundle in {bundle for bundle, _ in runs}
    ]:
        run_program(["cp", "-a", str(source), str(work / name)], timeout_s=60)
    library = next((work / "site/onnxruntime/capi").glob("libonnxruntime.so.*")).name
    try:
        with host.emulation():
            root = find_root()
            done = enter(root, work, "python3", "/work/by_python.py", timeout_s=1200)
            require(done.exit_code == 0, done.last_lines)
            said = [json.loads(line) for line in done.text.splitlines()]
            for number, (bundle, variant) in enumerate(runs):
                argv = ["/work/describe", f"/work/site/onnxruntime/capi/{library}"]
                argv += [f"/work/{bundle.name}", "--variant", variant]
                for feed in range(counts[number]):
                    argv += [f"/work/run-{number}/in-{feed}", f"/work/run-{number}/out-{feed}"]
                done = enter(root, work, *argv)
                require(done.exit_code == 0, f"{bundle.name}: {done.text}{done.last_lines}")
                read_opened(json.loads(done.text)).require_equal(Opened(*said[number]))
                compare_run(bundle, work / f"run-{number}", counts[number])
    except host.CannotRunError as error:
        raise ToolError(
            str(error), hint="run this as root, on a kernel with binfmt_misc"
        ) from error
    first = work / "run-0/python-0.npz"
    moved = {name: array.copy() for name, array in np.load(first).items()}
    next(iter(moved.values())).reshape(-1)[0] += 1
    np.savez(first, **moved)
    try:
        compare_run(runs[0][0], work / "run-0", counts[0])
    except NotHeldError:
        return f"{len(runs)} variants, {sum(counts)} runs; a planted difference is seen"
    raise NotHeldError("a planted difference is not seen")


def write_run(bundle: Path, variant: str, folder: Path) -> int:
    """Write inputs for a variant, for both programs; return how many."""
    model = loader.load(bundle, variant)
    names = [spec.name for spec in model.inputs]
    feeds = list(list_feeds(model))[:MOST_FEEDS]
    for number, feed in enumerate(feeds):
        write_tensors(folder / f"in-{number}", names, feed)
        (folder / f"out-{number}").mkdir()
        np.savez(folder / f"{number}.npz", **feed)
    return len(feeds)


def compare_run(bundle: Path, folder: Path, count: int) -> None:
    """Raise NotHeldError unless both programs put out the same bytes."""
    outputs = [spec.name for spec in loader.Bundle(bundle).outputs]
    for number in range(count):
        found = read_tensors(folder / f"out-{number}", outputs)
        expected = np.load(folder / f"python-{number}.npz")
        require(sorted(found) == sorted(expected.files), f"{bundle.name}: {sorted(found)}")
        for name in expected.files:
            array = expected[name]
            same = found[name].dtype == array.dtype and found[name].tobytes() == array.tobytes()
            require(same, f"{bundle.name}, {folder.name}: {name} of {number} differs")


PROOFS = (Proof("the same choices and bits on aarch64", compare),)
