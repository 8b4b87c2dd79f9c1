"""The projects that are built: the example, and public models where EDGEPACK_TEST_DATA names them.

The folder has ``imagenet/`` with the two models named below, ``images/`` and ``labels.csv`` (rows
of file and class index). It is not part of edgepack, and nothing of it may be copied here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.resources import find_example_dir

VARIABLE = "EDGEPACK_TEST_DATA"


@dataclass(frozen=True)
class PublicModel:
    """A model, and how images become its input."""

    name: str
    file: str
    input_name: str
    image: str
    """The ``image`` of ``inputs`` in edgepack.yaml."""
    origin: str


SQUEEZENET = PublicModel(
    "squeezenet1.1",
    "squeezenet1.1_fp32_opset13_dynbatch.onnx",
    "data_0",
    "{resize: {short_side: 256, crop: 224}, order: BGR, mean: [103.939, 116.779, 123.68]}",
    "github.com/microsoft/Windows-Machine-Learning, `SharedContent/models/SqueezeNet_fp16.onnx`,"
    " its weights widened to fp32 and converted to opset 13; trained by"
    " github.com/forresti/SqueezeNet",
)
MOBILENET = PublicModel(
    "mobilenet_v1_0.25_128",
    "mobilenet_v1_0.25_128_fp32.onnx",
    "input",
    "{resize: {short_side: 146, crop: 128}, order: RGB, scale: 0.00784314, mean: [1, 1, 1]}",
    "github.com/sipeed/TinyMaix, `tools/tflite/mbnet128_0.25_f.tflite` (Keras weights),"
    " converted to ONNX",
)


def example_project() -> Path:
    """Return the project file of the bundled example."""
    return find_example_dir() / "edgepack.yaml"


def public_data() -> Path | None:
    """Return the folder of public models and images, if there is one on this machine."""
    folder = os.environ.get(VARIABLE, "")
    return Path(folder).resolve() / "imagenet" if folder else None


def write_project(folder: Path, model: PublicModel, data: Path, samples: str) -> Path:
    """Write a project for a public model into an empty folder and return its project file.

    Args:
        folder: Gets links to the data; nothing is copied.
        model: The model.
        data: What :func:`public_data` returned.
        samples: The ``samples`` of edgepack.yaml; ``images`` and ``labels.csv`` lie beside it.
    """
    for link, target in (
        ("model.onnx", model.file),
        ("images", "images"),
        ("labels.csv", "labels.csv"),
    ):
        (folder / link).symlink_to(data / target)
    project = folder / "edgepack.yaml"
    project.write_text(
        "schema_version: 1\n"
        f"name: {model.name}\n"
        "model: model.onnx\n"
        "dims: {N: 1}\n"
        f"inputs: {{{model.input_name}: {{image: {model.image}}}}}\n"
        f"samples: {samples}\n",
        encoding="utf-8",
    )
    return project
