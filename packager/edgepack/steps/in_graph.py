"""Preprocessing put into the finished model: it takes pictures, uint8 (H, W, 3), of any size.

It comes after the recipe, so that numbers are those of the model without it; the samples that a
recipe needs are the tensors made of the pictures (``tensor-samples`` in steps/pictures.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from edgepack.accuracy import min_sqnr_db
from edgepack.data import SampleSet, spread
from edgepack.errors import StepError
from edgepack.harness import edgepack_images as images
from edgepack.model.facts import TensorSpec, default_opset
from edgepack.model.reading import read_model, read_structure, write_model
from edgepack.model.running import EXTENSIONS, make_session, run_session
from edgepack.project import ImageInput
from edgepack.steps.base import MODEL, Inputs, Notes
from edgepack.steps.pictures import Described, is_jpeg, made_pictures, pixels_of
from edgepack.steps.preprocessing import OPSET, picture_nodes, put_before

if TYPE_CHECKING:
    import onnx
    import onnxruntime

Array = np.ndarray[Any, Any]

MOST_LEVELS = 1.0
"""How far a value may be from Pillow's, in 1/255 before ``scale``."""
MOST_MEAN_LEVELS = 4.0
"""The same on average over a JPEG that the model decodes. onnxruntime-extensions 0.15.2 is at most
3 from Pillow's decoder on 167 photographs, half a level as a rule (2026-11-22)."""
FAULT = "this is a fault in edgepack or onnxruntime: please report it"
OTHER_PICTURE = (
    "save it upright and opaque, as decode_image neither turns pictures as EXIF says nor lays"
    " transparency over white; or leave 'extensions' out"
)
_SAME_DB = 60.0
_PROBES = 4
_ODD_SIZES = ((1, 1), (1, 40), (300, 7), (255, 257), (480, 640))
"""Heights and widths of pictures that the proof makes."""


@dataclass(frozen=True)
class InGraph:
    """The model with what makes its tensors of pictures in front.

    Inputs: ``model``, opset 18 or newer; ``samples``, pictures as the new model takes them.
    """

    name: ClassVar[str] = "in-graph"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnx", "onnxruntime")
    cacheable = True
    signature: tuple[TensorSpec, ...]
    """The inputs of the new model."""
    described: Described

    def check(self, inputs: Inputs) -> None:
        """Make sure that the model can have the nodes.

        Raises:
            StepError: Its opset is too old, or a picture's input is an output as well.
        """
        model = read_structure(inputs["model"] / MODEL)
        if default_opset(model) < OPSET:
            raise StepError(
                f"preprocessing in the graph needs opset {OPSET}, the model has"
                f" {default_opset(model)}",
                hint="this is a fault in edgepack: please report it with the model",
            )
        outputs = {value.name for value in model.graph.output}
        for name, _ in self.described:
            if name in outputs:
                raise StepError(
                    f"the input {name!r} is an output of the model, too",
                    hint="export the model without that output, or leave in_graph out",
                )

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``model.onnx``."""
        model = read_model(inputs["model"] / MODEL)
        for name, image in self.described:
            put_before(model, self._pixels(name), image)
        write_model(model, out / MODEL)
        names = ", ".join(repr(name) for name, _ in self.described)
        files = any(len(self._shape(name)) == 1 for name, _ in self.described)
        near = "" if files else ", within 1/255 of Pillow's before 'scale'"
        what = "decoding and preprocessing" if files else "preprocessing"
        return Notes(f"{what} of {names} put into the graph{near}")

    def _shape(self, name: str) -> tuple[int | str, ...]:
        return next(spec.shape or () for spec in self.signature if spec.name == name)

    def _pixels(self, name: str) -> onnx.ValueInfoProto:
        from onnx import TensorProto, helper

        return helper.make_tensor_value_info(name, TensorProto.UINT8, self._shape(name))

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that tensors are Pillow's, and outputs those of the model given these tensors.

        Raises:
            StepError: They are not: names the input, the size of the picture and how far it is.
            ModelError: The model does not load or run.
        """
        probes = SampleSet.read(inputs["samples"])
        sessions = {
            name: picture_session(image, out, as_file=len(self._shape(name)) == 1)
            for name, image in self.described
        }
        for name, image in self.described:
            made = made_pictures(self._shape(name), _ODD_SIZES)
            for pixels in (*made, *(feed[name] for feed in probes)):
                require_equal(name, image, pixels, sessions[name])
        before, after = make_session(inputs["model"] / MODEL), make_session(out / MODEL)
        for index in spread(range(len(probes)), _PROBES):
            feed = probes.inputs(index)
            tensors = {name: _run(sessions[name], feed[name]) for name, _ in self.described}
            expected = run_session(before, {**feed, **tensors})
            found = min_sqnr_db(expected, run_session(after, feed))
            if found < _SAME_DB:
                raise StepError(
                    f"with preprocessing in the graph the outputs are {found:.0f} dB from those of"
                    " the model",
                    hint="this is a fault in edgepack: please report it with the model",
                )


def picture_session(
    image: ImageInput, scratch: Path, *, as_file: bool = False
) -> onnxruntime.InferenceSession:
    """Return a session of nothing but what makes a tensor of a picture.

    Args:
        image: What is done to it.
        scratch: A folder to write to; nothing stays there.
        as_file: Whether the picture is the bytes of an image file.
    """
    from onnx import TensorProto, helper

    made = picture_nodes("preprocess", "pixels", image, as_file=as_file)
    shape: list[str | int | None] = ["bytes"] if as_file else ["height", "width", 3]
    graph = helper.make_graph(
        made.nodes,
        "preprocessing",
        [helper.make_tensor_value_info("pixels", TensorProto.UINT8, shape)],
        [helper.make_tensor_value_info(made.nodes[-1].output[0], TensorProto.FLOAT, None)],
        made.constants,
    )
    # IR 8 is the one of opset 18 (onnx/docs/Versioning.md, table of released versions).
    domains = {"": OPSET, EXTENSIONS: 1} if as_file else {"": OPSET}
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    path = scratch / "preprocessing.onnx"
    write_model(model, path)
    session = make_session(path)
    path.unlink()
    return session


def _run(session: onnxruntime.InferenceSession, pixels: Array) -> Array:
    return next(iter(run_session(session, {"pixels": pixels}).values()))


def require_equal(
    name: str, image: ImageInput, given: Array, session: onnxruntime.InferenceSession
) -> None:
    """Prove that a session makes the tensor of a picture that Pillow and numpy make.

    Raises:
        StepError: A value is further than :data:`MOST_LEVELS` from it, or, where the session
            decodes a JPEG, the mean is further than :data:`MOST_MEAN_LEVELS`.
    """
    expected = images.tensor(pixels_of(given), image.model_dump())
    apart = levels_apart(expected, _run(session, given), image)
    size, hint = " x ".join(map(str, given.shape[:2])), FAULT
    if given.ndim == 1:
        size, hint = f"{given.size} bytes", OTHER_PICTURE
    what = f"the tensor {name!r} of a picture of {size} is"
    if is_jpeg(given):
        if apart.mean() > MOST_MEAN_LEVELS:
            raise StepError(
                f"{what} {apart.mean():.1f} levels of 255 from what Pillow makes of it, on"
                f" average; {MOST_MEAN_LEVELS:g} are allowed for another JPEG decoder",
                hint=hint,
            )
    elif apart.max() > MOST_LEVELS:
        raise StepError(
            f"{what} {apart.max():.2f} levels of 255 from what Pillow makes of it", hint=hint
        )


def levels_apart(expected: Array, found: Array, image: ImageInput) -> Array:
    """Return the differences of two tensors in levels of 255, as they were before ``scale``.

    What float32 rounds is left out: a millionth of the largest value.
    """
    channels = (1, -1, 1, 1) if image.layout == "NCHW" else (1, 1, 1, -1)
    step = np.abs(image.scale / np.array(image.std or [1.0])).reshape(channels)
    rounding = 1e-6 * float(np.abs(expected).max())
    apart = np.maximum(np.abs(expected.astype(np.float64) - found) - rounding, 0.0)
    return np.asarray(apart / np.maximum(step, np.finfo(np.float64).tiny))
