"""The models and samples by which quantizers are compared, where EDGEPACK_TEST_DATA names them.

Of a seeded permutation of a model's samples, the first 100 calibrate and those from the 200th on
are judged by: another seed is another draw of both. Windows of sound overlap each other.
"""

from __future__ import annotations

import csv
import io
import wave
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from edgepack.project.inputs import ImageInput
from edgepack.samples.images import read_image_tensor
from PIL import Image

from tests.bench.projects import MOBILENET, SQUEEZENET, PublicModel

Array = np.ndarray[Any, Any]
CALIBRATION = 100
FIRST_JUDGED = 200
_CIFAR_MEAN, _CIFAR_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_WINDOW, _HOP, _FRAME, _STEP, _BANDS, _COEFFICIENTS = 16000, 2400, 640, 320, 40, 10


@dataclass(frozen=True)
class Task:
    """A model, what calibrates it, and what it is judged by."""

    name: str
    model: Path
    input_name: str
    calibration: Callable[[], Array]
    """Gives a float32 array; the leading axis counts samples."""
    evaluation: Callable[[], Iterator[Array]]
    """Gives one input after the other, shaped as the model takes it."""
    labels: Array | None
    """One class index per evaluation sample."""


def tasks(root: Path, seed: int = 0) -> Iterator[Task]:
    """Yield the tasks; ``root`` is the folder that EDGEPACK_TEST_DATA names."""
    yield _photographs(root / "imagenet", MOBILENET, seed)
    yield _photographs(root / "imagenet", SQUEEZENET, seed)
    yield _cifar(root / "small", seed)
    yield _words(root, seed)


def _photographs(data: Path, model: PublicModel, seed: int) -> Task:
    with (data / "labels.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if not row[0].startswith("#")]
    order = np.random.default_rng(seed).permutation(len(rows))
    judged = order[FIRST_JUDGED:]
    description = ImageInput.model_validate(_parsed(model.image))

    def tensor(index: int) -> Array:
        return read_image_tensor(data / "images" / rows[index][0], description)

    return Task(
        model.name,
        data / model.file,
        model.input_name,
        lambda: np.concatenate([tensor(k) for k in order[:CALIBRATION]]),
        lambda: (tensor(k) for k in judged),
        np.array([int(rows[k][1]) for k in judged]),
    )


def _parsed(text: str) -> Any:
    import yaml

    return yaml.safe_load(text)


def _cifar(data: Path, seed: int) -> Task:
    archive = data / "cifar10_test3000_jpg.zip"
    with zipfile.ZipFile(archive) as opened:
        names = sorted(name for name in opened.namelist() if name.endswith(".jpg"))
        pixels = [np.asarray(Image.open(io.BytesIO(opened.read(name)))) for name in names]
    images = np.stack(pixels).astype(np.float32) / 255
    images = (images - np.float32(_CIFAR_MEAN)) / np.float32(_CIFAR_STD)
    images = np.ascontiguousarray(images.transpose(0, 3, 1, 2), dtype=np.float32)
    kinds = sorted({name.split("/")[-2] for name in names})
    labels = np.array([kinds.index(name.split("/")[-2]) for name in names])
    order = np.random.default_rng(seed).permutation(len(names))
    judged = order[FIRST_JUDGED:]
    return Task(
        "resnet20",
        data / "cifar10_resnet20_fp32_bn.onnx",
        "input",
        lambda: images[order[:CALIBRATION]],
        lambda: (images[k : k + 1] for k in judged),
        labels[judged],
    )


def _words(root: Path, seed: int) -> Task:
    """Return DS-CNN with windows of speech; without labels, and its features are approximate."""
    sound = [root / "audio" / "silero_vad" / "test.wav", root / "audio" / "gtcrn" / "mix.wav"]
    features = np.concatenate([_features(_read_wave(path)) for path in sound])
    order = np.random.default_rng(seed).permutation(len(features))
    judged = order[FIRST_JUDGED:]
    return Task(
        "ds-cnn",
        root / "small" / "mlperf_tiny_kws_dscnn_fp32.onnx",
        "input",
        lambda: features[order[:CALIBRATION]],
        lambda: (features[k : k + 1] for k in judged),
        None,
    )


def _read_wave(path: Path) -> Array:
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float64) / 32768


def _features(signal: Array) -> Array:
    """Return cepstra of windows of one second, ``(windows, 1, 49, 10)`` float32.

    Log energies of 40 mel bands from 20 to 4,000 Hz over frames of 40 ms every 20 ms, and the
    first ten coefficients of their cosine transform.
    """
    starts = range(0, len(signal) - _WINDOW + 1, _HOP)
    frames = np.stack(
        [
            np.lib.stride_tricks.sliding_window_view(signal[s : s + _WINDOW], _FRAME)[::_STEP]
            for s in starts
        ]
    )
    power = np.abs(np.fft.rfft(frames * np.hanning(_FRAME), 1024)) ** 2
    energies = np.log(power @ _mel_bands().T + 1e-6)
    bands = np.arange(_BANDS)
    cosines = np.cos(np.pi / _BANDS * np.outer(np.arange(_COEFFICIENTS), bands + 0.5))
    cepstra = energies @ cosines.T * np.sqrt(2 / _BANDS)
    return cepstra[:, None].astype(np.float32)


def _mel_bands() -> Array:
    def mel(hertz: Any) -> Any:
        return 1127 * np.log1p(np.asarray(hertz) / 700)

    edges = np.linspace(mel(20), mel(4000), _BANDS + 2)
    places = mel(np.fft.rfftfreq(1024, 1 / 16000))
    rising = (places - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - places) / (edges[2:] - edges[1:-1])[:, None]
    return np.maximum(0, np.minimum(rising, falling))
