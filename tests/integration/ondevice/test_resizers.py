"""Filters of floats against TensorFlow and torchvision themselves, in environments of their own.

TensorFlow comes from the package index, torchvision from Debian: from the index it takes gigabytes.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from edgepack.base.processes import run_program
from edgepack.ondevice.runtime.edgepack_resizing import resize_pixels

from tests.support.servers.debian_roots import debian_root, locked

ROOT = Path(__file__).resolve().parents[3]
TENSORFLOW = "tensorflow-cpu==2.21.0"
MOST = 1e-4 * 255
"""In levels of 255: what is promised. In the libraries, too, places in a picture are float32."""
RUN_TIMEOUT_S = 300.0

# Both read pictures and sizes, and write an array for each and for each way to resize.
BY_TENSORFLOW = """
import os, sys
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import numpy, tensorflow
given, found = numpy.load(sys.argv[1]), {}
for name in given.files:
    number, width, height = name.split("-")
    for antialias in (False, True):
        made = tensorflow.image.resize(
            given[name][None], (int(height), int(width)), method="bilinear", antialias=antialias
        )
        found[f"{name}/tf-bilinear/{antialias}"] = made.numpy()[0]
numpy.savez(sys.argv[2], **found)
"""
BY_TORCHVISION = """
import sys
import numpy, torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2.functional import resize
given, found = numpy.load(sys.argv[1]), {}
for name in given.files:
    number, width, height = name.split("-")
    tensor = torch.from_numpy(given[name].transpose(2, 0, 1).copy()).float()
    for mode in ("bilinear", "bicubic"):
        for antialias in (False, True):
            made = resize(
                tensor, [int(height), int(width)], InterpolationMode(mode), antialias=antialias
            )
            found[f"{name}/torchvision-{mode}/{antialias}"] = made.numpy().transpose(1, 2, 0)
numpy.savez(sys.argv[2], **found)
"""
# Arguments: the root file system, the folder for /work, the program's.
ENTER = """
root=$1 work=$2
shift 2
mkdir -p "$root/work" && mount -t proc proc "$root/proc" && mount --bind "$work" "$root/work" &&
exec chroot "$root" sh -c 'cd /work && exec "$@"' sh "$@"
"""


def draw_pictures() -> Iterator[tuple[str, np.ndarray]]:
    """Yield a name, which has the new size, and a picture; most are small, some have long sides."""
    random = np.random.default_rng(3)
    for number in range(240):
        # PyTorch makes wrong rows where a picture becomes one pixel wide (2.6.0 and 2.14.1, tried).
        width, height, to_width, to_height = random.integers(2, 60 if number % 2 else 400, 4)
        if number % 40 == 0:
            width, to_width = random.integers(1500, 4000, 2)
        channels = 3 if number % 3 else 1
        values = random.integers(-60, 316, (height, width, channels))
        pixels = np.clip(values, 0, 255).astype(np.uint8)
        yield f"{number}-{to_width}-{to_height}", pixels


def require_same(folder: Path, run: Callable[[str, str, str], None], count: int) -> None:
    """Resize pictures by a program, which gets the names of two files, and hold ours against it."""
    given = dict(draw_pictures())
    np.savez(folder / "given.npz", **given)
    run("resize.py", "given.npz", "found.npz")
    found = np.load(folder / "found.npz")
    assert len(found.files) == count * len(given)
    for key in found.files:
        name, filter_, antialias = key.split("/")
        _, width, height = map(int, name.split("-"))
        resize = {"filter": filter_, "antialias": antialias == "True"}
        ours = resize_pixels(given[name], width, height, resize=resize)
        assert ours.dtype == found[key].dtype == np.float32
        assert np.abs(ours - found[key]).max() <= MOST, (key, given[name].shape)


@pytest.mark.in_turns
@pytest.mark.slow(reason="installs TensorFlow")
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="TensorFlow 2.21 has no wheels for it")
def test_tensorflow_makes_the_same_of_pictures(tmp_path: Path) -> None:
    python = find_tensorflow()
    (tmp_path / "resize.py").write_text(BY_TENSORFLOW)

    def run(*names: str) -> None:
        require_done([python, *(tmp_path / name for name in names)])

    require_same(tmp_path, run, count=2)


@pytest.mark.in_turns
@pytest.mark.slow(reason="makes a root file system with torchvision")
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mmdebstrap") is None,
    reason="torchvision is Debian's, in a root file system: that needs root and mmdebstrap",
)
def test_torchvision_makes_the_same_of_tensors(tmp_path: Path) -> None:
    root = debian_root(ROOT / ".debian", "trixie", ("python3-torchvision",))
    (tmp_path / "resize.py").write_text(BY_TORCHVISION)
    # The mounts end with the namespace.
    isolated = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh"]
    clean = ["env", "-i", "HOME=/root", "PATH=/usr/bin:/bin", "python3"]
    require_same(
        tmp_path, lambda *names: require_done([*isolated, root, tmp_path, *clean, *names]), count=4
    )


def require_done(argv: Sequence[str | Path]) -> None:
    done = run_program([str(word) for word in argv], timeout_s=RUN_TIMEOUT_S)
    assert done.exit_code == 0, done.stderr.decode("utf-8", "replace")[-2000:]


def find_tensorflow() -> Path:
    """Return a Python that has TensorFlow, which is installed once."""
    folder = ROOT / ".venv-tensorflow"
    python, stamp = folder / "bin" / "python", folder / "made-of"
    with locked(folder):
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != TENSORFLOW:
            shutil.rmtree(folder / "lib", ignore_errors=True)
            require_done([sys.executable, "-m", "venv", folder])
            require_done([python, "-m", "pip", "install", "--quiet", TENSORFLOW])
            stamp.write_text(TENSORFLOW, encoding="utf-8")
    return python
