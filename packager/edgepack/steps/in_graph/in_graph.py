"""Preprocessing put into the finished model: it takes pictures and texts.

It comes after the recipe, so that numbers are those of the model without it; the samples that a
recipe needs are the tensors made of pictures and texts (steps/in_graph/picture_samples.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import BugError, StepError
from edgepack.metrics.accuracy import min_sqnr_db
from edgepack.model.facts import EXTENSIONS, TensorSpec, find_default_opset, read_signature
from edgepack.model.files import MODEL
from edgepack.model.reading import read_model, read_structure, write_model
from edgepack.model.running import Arrays, make_session, run_session
from edgepack.ondevice.runtime import edgepack_images as images
from edgepack.project.inputs import ImageInput, TokensInput
from edgepack.samples.sample_set import SampleSet, encode_text
from edgepack.samples.spreading import choose_spread
from edgepack.samples.tokenizers import BytePairs, parse_tokenizer
from edgepack.steps.base import Inputs, Notes
from edgepack.steps.in_graph.pictures import Described, decode_picture, is_jpeg, make_pictures
from edgepack.steps.in_graph.preprocessing import OPSET, make_picture_nodes, put_before
from edgepack.steps.in_graph.texts import (
    MADE,
    DescribedTexts,
    decode_text,
    list_made_names,
    make_text_tensors,
    put_text_before,
    read_tokenizers,
)

if TYPE_CHECKING:
    import onnx
    import onnxruntime


MOST_LEVELS = 1.0
"""How far a value may be from the library's, in 1/255 before ``scale``."""
MOST_MEAN_LEVELS = 4.0
"""The same on average over a JPEG that the model decodes. onnxruntime-extensions 0.15.2 is at most
3 from Pillow's decoder on 167 photographs, half a level as a rule (2026-11-22)."""
OTHER_TEXT = (
    "leave such texts out of the samples if callers never give them, and see docs/preprocessing.md"
    " for what operators cannot do; or leave 'extensions' out"
)
OTHER_PICTURE = (
    "save it upright and opaque, as decode_image neither turns pictures as EXIF says nor lays"
    " transparency over white; or leave 'extensions' out"
)
_SAME_DB = 60.0
_PROBES = 4
_SHOWN = 16
_ODD_SIZES = ((1, 1), (1, 40), (300, 7), (255, 257), (480, 640))
"""Heights and widths of pictures that the proof makes."""


@dataclass(frozen=True)
class InGraph:
    """The model with what makes its tensors of pictures and texts in front.

    Inputs: ``model``, opset 18 or newer; ``samples``, as the new model takes them; the file of each
    text's tokenizer (:func:`~edgepack.steps.in_graph.texts.name_tokenizer_input`).
    """

    name: ClassVar[str] = "in-graph"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "onnx", "onnxruntime")
    cacheable = True
    signature: tuple[TensorSpec, ...]
    """The inputs of the new model."""
    described: Described
    texts: DescribedTexts = ()

    def check(self, inputs: Inputs) -> None:
        """Make sure that the model can have the nodes.

        Raises:
            StepError: Its opset is too old, or a picture's input is an output as well.
        """
        model = read_structure(inputs["model"] / MODEL)
        if find_default_opset(model) < OPSET:
            raise BugError(
                f"preprocessing in the graph needs opset {OPSET}, the model has"
                f" {find_default_opset(model)}"
            )
        outputs = {value.name for value in model.graph.output}
        texts = (name for each in self.texts for name in list_made_names(*each))
        for name in (*(name for name, _ in self.described), *texts):
            if name in outputs:
                raise StepError(
                    f"the input {name!r} is an output of the model, too",
                    hint="export the model without that output, or leave 'preprocess' out",
                )

    def run(self, inputs: Inputs, out: Path) -> Notes:
        """Write ``model.onnx``."""
        model = read_model(inputs["model"] / MODEL)
        for name, image in self.described:
            put_before(model, self._make_input(name), image)
        tokenizers = read_tokenizers(inputs, self.texts)
        for (name, tokens), tokenizer in zip(self.texts, tokenizers, strict=True):
            put_text_before(model, self._make_input(name), tokens, tokenizer)
        write_model(model, out / MODEL)
        return Notes(f"{' and '.join(self._list_changes())} put into the graph")

    def _list_changes(self) -> list[str]:
        done = []
        if names := ", ".join(repr(name) for name, _ in self.described):
            files = any(len(self._find_shape(name)) == 1 for name, _ in self.described)
            near = "" if files else ", within 1/255 of Pillow's before 'scale',"
            what = "decoding and preprocessing" if files else "preprocessing"
            done.append(f"{what} of {names}{near}")
        if names := ", ".join(repr(name) for name, _ in self.texts):
            done.append(f"the tokenizer of {names}")
        return done

    def _find_shape(self, name: str) -> tuple[int | str, ...]:
        return next(spec.shape or () for spec in self.signature if spec.name == name)

    def _make_input(self, name: str) -> onnx.ValueInfoProto:
        from onnx import TensorProto, helper

        return helper.make_tensor_value_info(name, TensorProto.UINT8, self._find_shape(name))

    def verify(self, inputs: Inputs, out: Path) -> None:
        """Prove that the tensors are correct, and that the outputs are those of the model for them.

        Raises:
            StepError: They are not: names the input, the size of the picture and how far it is, or
                the text.
            ModelError: The model does not load or run.
        """
        probes = SampleSet.read(inputs["samples"])
        sessions = {
            name: open_picture_session(image, out, as_file=len(self._find_shape(name)) == 1)
            for name, image in self.described
        }
        for name, image in self.described:
            made = make_pictures(self._find_shape(name), _ODD_SIZES)
            for pixels in (*made, *(feed[name] for feed in probes)):
                require_equal(name, image, pixels, sessions[name])
        before, after = make_session(inputs["model"] / MODEL), make_session(out / MODEL)
        taken, _ = read_signature(read_structure(inputs["model"] / MODEL))
        dtypes = {spec.name: spec.dtype for spec in taken}
        texts = self._prove_texts(inputs, probes, taken, out)
        for index in choose_spread(range(len(probes)), _PROBES):
            feed = probes.read_inputs(index)
            tensors = {
                name: _run(sessions[name], feed[name]).astype(dtypes[name], copy=False)
                for name, _ in self.described
            }
            for (name, _), proven in zip(self.texts, texts, strict=True):
                tensors |= proven[decode_text(feed[name])]
            expected = run_session(before, {**feed, **tensors})
            found = min_sqnr_db(expected, run_session(after, feed))
            if found < _SAME_DB:
                raise BugError(
                    f"with preprocessing in the graph the outputs are {found:.0f} dB from those of"
                    " the model"
                )

    def _prove_texts(
        self,
        inputs: Inputs,
        probes: SampleSet,
        taken: tuple[TensorSpec, ...],
        scratch: Path,
    ) -> list[dict[str, Arrays]]:
        """Prove the tensors of the samples' texts and of some more; return them by text."""
        proven = []
        tokenizers = read_tokenizers(inputs, self.texts)
        for (name, tokens), tokenizer in zip(self.texts, tokenizers, strict=True):
            texts = ["", *MADE, *(decode_text(feed[name]) for feed in probes)]
            proof = TextProof(name, tokens, tokenizer, taken)
            proven.append(proof.prove(texts, scratch))
        return proven


@dataclass(frozen=True)
class TextProof:
    """A tokenizer in the graph beside one that was written anew."""

    name: str
    tokens: TokensInput
    tokenizer: str
    """The content of its file."""
    taken: tuple[TensorSpec, ...]
    """The inputs of the model without it."""

    def prove(self, texts: Sequence[str], scratch: Path) -> dict[str, Arrays]:
        """Return the tensors of each text, which both make alike.

        Raises:
            StepError: They make other tensors of one.
        """
        session, parsed = self._open_text_session(scratch), parse_tokenizer(self.tokenizer)
        texts = [*texts, *_list_odd_texts(self.tokenizer)]
        found = {}
        for text in texts:
            expected = make_text_tensors(parsed, text, self.name, self.tokens, self.taken)
            made = run_session(session, {self.name: encode_text(text)})
            for name, values in expected.items():
                if not np.array_equal(made[_find_made_name(name)], values):
                    raise StepError(
                        f"{name!r} of the text {text[:80]!r} is"
                        f" {_format_ids(made[_find_made_name(name)])}, not"
                        f" {_format_ids(values)}, which the tokenizer says",
                        hint=OTHER_TEXT,
                    )
            found[text] = expected
        return found

    def _open_text_session(self, scratch: Path) -> onnxruntime.InferenceSession:
        """Return a session that makes the model's inputs of a text, and does nothing else."""
        from onnx import TensorProto, helper

        specs = [s for s in self.taken if s.name in list_made_names(self.name, self.tokens)]
        values = {
            spec.name: helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype)) for spec in specs
        }
        graph = helper.make_graph(
            [helper.make_node("Identity", [name], [_find_made_name(name)]) for name in values],
            "tokenizer",
            [helper.make_tensor_value_info(s.name, values[s.name], s.shape) for s in specs],
            [
                helper.make_tensor_value_info(_find_made_name(n), kind, None)
                for n, kind in values.items()
            ],
        )
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
        given = helper.make_tensor_value_info(self.name, TensorProto.UINT8, ["bytes"])
        put_text_before(model, given, self.tokens, self.tokenizer)
        return _open_session(model, scratch)


@lru_cache(maxsize=1)
def _list_odd_texts(tokenizer: str) -> list[str]:
    """Return texts of several words that an operator may mistake for one word of the vocabulary."""
    parsed = parse_tokenizer(tokenizer)
    return list(parsed.list_unreachable()) if isinstance(parsed, BytePairs) else []


def _find_made_name(name: str) -> str:
    return f"{name}/made"


def _format_ids(values: Array) -> str:
    """Return the ids of a text, or the first of them."""
    ids = values.ravel().tolist()
    return f"{ids[:_SHOWN]}" + (f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else "")


def _open_session(model: onnx.ModelProto, scratch: Path) -> onnxruntime.InferenceSession:
    """Return a session of a model that is in a folder only while it loads."""
    path = scratch / "preprocessing.onnx"
    write_model(model, path)
    session = make_session(path)
    path.unlink()
    return session


def open_picture_session(
    image: ImageInput, scratch: Path, *, as_file: bool = False
) -> onnxruntime.InferenceSession:
    """Return a session of nothing but what makes a tensor of a picture.

    Args:
        image: What is done to it.
        scratch: A folder to write to; nothing stays there.
        as_file: Whether the picture is the bytes of an image file.
    """
    from onnx import TensorProto, helper

    made = make_picture_nodes("preprocess", "pixels", image, as_file=as_file)
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
    return _open_session(model, scratch)


def _run(session: onnxruntime.InferenceSession, pixels: Array) -> Array:
    return next(iter(run_session(session, {"pixels": pixels}).values()))


def require_equal(
    name: str, image: ImageInput, given: Array, session: onnxruntime.InferenceSession
) -> None:
    """Prove that a session makes the tensor of a picture that the filter's library makes.

    Raises:
        StepError: A value is further than :data:`MOST_LEVELS` from it, or, where the session
            decodes a JPEG, the mean is further than :data:`MOST_MEAN_LEVELS`.
    """
    expected = images.make_tensor(decode_picture(given), image.model_dump())
    apart = compute_level_differences(expected, _run(session, given), image)
    encoded = given.ndim == 1
    size = f"{given.size} bytes" if encoded else " x ".join(map(str, given.shape[:2]))
    what = f"the tensor {name!r} of a picture of {size} is"
    if is_jpeg(given):
        if apart.mean() > MOST_MEAN_LEVELS:
            raise StepError(
                f"{what} {apart.mean():.1f} levels of 255 from what Pillow makes of it, on"
                f" average; {MOST_MEAN_LEVELS:g} are allowed for another JPEG decoder",
                hint=OTHER_PICTURE,
            )
    elif apart.max() > MOST_LEVELS:
        problem = (
            f"{what} {apart.max():.2f} levels of 255 from what {image.resize.filter} makes of it"
        )
        raise StepError(problem, hint=OTHER_PICTURE) if encoded else BugError(problem)


def compute_level_differences(expected: Array, found: Array, image: ImageInput) -> Array:
    """Return the differences of two tensors in levels of 255, as they were before ``scale``.

    What float32 rounds is left out: a millionth of the largest value.
    """
    channels = (1, -1, 1, 1) if image.layout == "NCHW" else (1, 1, 1, -1)
    step = np.abs(image.scale / np.array(image.std or [1.0])).reshape(channels)
    rounding = 1e-6 * float(np.abs(expected).max())
    apart = np.maximum(np.abs(expected.astype(np.float64) - found) - rounding, 0.0)
    return np.asarray(apart / np.maximum(step, np.finfo(np.float64).tiny))
