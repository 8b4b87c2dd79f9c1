"""Checks that a project's descriptions of inputs and outputs fit the model, before the build.

The device-side modules that implement the descriptions (``ondevice/runtime/edgepack_images.py``,
``edgepack_answers.py``, ``edgepack_wordpiece.py``) refuse the same errors at run time, where shapes
are not known here.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from edgepack.errors import ProfileError, suggest_nearest
from edgepack.model.facts import TensorSpec
from edgepack.ondevice.runtime.edgepack_answers import read_labels
from edgepack.ondevice.runtime.edgepack_images import find_placement
from edgepack.ondevice.runtime.edgepack_layouts import (
    BEFORE_SCORES,
    OBJECT_VALUES,
    count_cells,
    count_point_values,
)
from edgepack.ondevice.runtime.edgepack_wordpiece import TokenizerError, WordPiece
from edgepack.project.inputs import ImageInput, SoundInput, TokensInput
from edgepack.project.loading import LoadedProject
from edgepack.project.outputs import (
    ClassificationOutput,
    DetectionOutput,
    EmbeddingOutput,
    MaskOutput,
    OutputDescription,
    RawOutput,
    TextOutput,
    TokensOutput,
    list_read_too,
)
from edgepack.samples.tokenizers import parse_tokenizer

_Place = tuple[str, ...]


def check_meanings(
    loaded: LoadedProject,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    table_rows: Mapping[str, int],
) -> None:
    """Compare the descriptions of inputs and outputs with the model.

    Args:
        loaded: The project, whose names of inputs and outputs the model has.
        inputs: What the model takes, with the sizes that the project fixes.
        outputs: The model's outputs, likewise.
        table_rows: See :class:`~edgepack.model.facts.ModelFacts`.

    Raises:
        ProfileError: A file does not belong to the project or has the wrong content, or a shape
            cannot be as described.
    """
    taken, given = ({spec.name: spec for spec in specs} for specs in (inputs, outputs))
    check = _Check(loaded, taken, given, table_rows)
    for name, described in loaded.project.inputs.items():
        if described.image is not None:
            check.check_image(name, described.image)
        if described.sound is not None:
            check.check_sound(name, described.sound)
        if described.tokens is not None:
            check.check_tokens(name, described.tokens, described.pad or 0)
    for spec in outputs:
        if spec.name in loaded.project.outputs:
            check.check_output(spec, loaded.project.outputs[spec.name])


@dataclass(frozen=True)
class _Check:
    loaded: LoadedProject
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    table_rows: Mapping[str, int]

    def check_image(self, name: str, image: ImageInput) -> None:
        place = find_placement(1, 1, image.resize.model_dump())
        channels = 1 if image.order == "GRAY" else 3
        made = (1, place.input_height, place.input_width, channels)
        if image.layout == "NCHW":
            made = (1, channels, place.input_height, place.input_width)
        spec = self.inputs[name]
        if not spec.dtype.startswith("float") or not _can_be(spec, made):
            raise self._make_error(
                ("inputs", name, "image"),
                f"the input is {spec}, and an image would become float32{list(made)}",
                "change 'resize', 'order' or 'layout', or give 'dims' the sizes that it makes",
            )

    def check_sound(self, name: str, sound: SoundInput) -> None:
        spec, place = self.inputs[name], ("inputs", name, "sound")
        length = "values" if sound.length is None else sound.length
        shapes: list[tuple[int | str, ...]] = [(1, sound.channels, length)]
        if sound.channels == 1:
            shapes += [(1, length), (length,)]
        if spec.dtype not in ("float32", "float16", "int16") or not any(
            _can_be(spec, shape) for shape in shapes
        ):
            raise self._make_error(
                place,
                f"the input is {spec}, and sounds would become float32 {_join_shapes(shapes)}",
                "change 'channels' or 'length', or give 'dims' the size that it makes",
            )
        if sound.length is None and self.loaded.project.state:
            raise self._make_error(
                place,
                "with 'state' a sound is a stream of windows, and no length is given",
                "give 'length': the values of a window",
            )

    def check_tokens(self, name: str, tokens: TokensInput, pad: float) -> None:
        place = ("inputs", name, "tokens")
        text = self._find_file(tokens.file, (*place, "file"))
        in_graph = name in self.loaded.project.texts
        try:
            tokenizer = parse_tokenizer(text) if in_graph else WordPiece.parse(text)
        except TokenizerError as error:
            raise self._make_error(
                (*place, "file"),
                f"{tokens.file!r} is not a tokenizer that runs"
                f" {'in models' if in_graph else 'on devices'}: {error}",
                _explain_other_tokenizer(text, in_graph=in_graph),
            ) from error
        spec = self.inputs[name]
        if not _is_for_ids(spec, "tokens"):
            raise self._make_error(
                place, f"the input is {spec}, not ids [1, tokens]", "describe another input"
            )
        self._check_vocabulary(name, tokens, text)
        self._check_length(spec, tokens, tokenizer.special_tokens)
        length = spec.shape[1] if spec.shape else "?"
        self._check_beside(name, tokens, length)
        if isinstance(length, str) and tokenizer.pad_id != pad and not in_graph:
            raise self._make_error(
                place,
                f"{tokens.file!r} pads with {tokenizer.pad_id}, the loader with {pad:g}",
                f"add pad: {tokenizer.pad_id} to the input {name!r}",
            )

    def _check_vocabulary(self, name: str, tokens: TokensInput, text: str) -> None:
        """Check that each word's id is a row of the model's table: another id would end a run."""
        vocabulary = json.loads(text)["model"]["vocab"]
        word, highest = max(vocabulary.items(), key=lambda item: item[1])
        rows = self.table_rows.get(name, highest + 1)
        if highest >= rows:
            raise self._make_error(
                ("inputs", name, "tokens", "file"),
                f"{tokens.file!r} has ids up to {highest}, for {word!r}, and the model has a table"
                f" of {rows} rows for {name!r}",
                "give the tokenizer.json that the model was trained with",
            )

    def _check_beside(self, name: str, tokens: TokensInput, length: int | str) -> None:
        """Check that the tensors beside the ids have their own inputs, which can take them."""
        project = self.loaded.project
        texts = [(n, d.tokens) for n, d in project.inputs.items() if d.tokens]
        filled = [each for n, t in texts for each in (n, t.attention_mask, t.token_type_ids)]
        for key in ("attention_mask", "token_type_ids"):
            beside = getattr(tokens, key)
            place, spec = ("inputs", name, "tokens", key), self.inputs.get(beside)
            if spec is None and key in tokens.model_fields_set:
                problem = f"the model has no input {beside!r}"
                raise self._make_error(place, problem, suggest_nearest(beside, list(self.inputs)))
            if spec is not None and name in project.texts and beside in project.inputs:
                raise self._make_error(
                    ("inputs", beside),
                    f"{beside!r} is described, and the model makes it of the text",
                    f"remove {beside!r} from 'inputs'",
                )
            if spec is not None and filled.count(beside) > 1:
                raise self._make_error(
                    place, f"{beside!r} would be filled twice", f"give {key!r} an input of its own"
                )
            if spec is not None and not _is_for_ids(spec, length):
                raise self._make_error(
                    place,
                    f"the input is {spec}, not int32 or int64 [1, {length}] as the ids are",
                    "leave 'tokens' out and give token ids",
                )

    def _check_length(self, spec: TensorSpec, tokens: TokensInput, special: int) -> None:
        place = ("inputs", spec.name, "tokens", "length")
        size = spec.shape[1] if spec.shape else "?"
        if isinstance(size, int) and size != tokens.length:
            raise self._make_error(
                place, f"the input is {spec}, with {size} tokens", f"give length: {size}"
            )
        project = self.loaded.project
        spans = {name: [span.max] for name, span in project.spans.items()}
        most = max({**project.buckets, **spans}.get(str(size), [tokens.length]))
        if tokens.length > most:
            raise self._make_error(
                place,
                f"{tokens.length} tokens are more than the largest size of {size!r}, {most}",
                f"give length: {most}",
            )
        if tokens.length <= special:
            raise self._make_error(
                place,
                f"{tokens.length} tokens hold nothing beside the {special} special ones",
                "give more",
            )

    def check_output(self, spec: TensorSpec, meaning: OutputDescription) -> None:
        match meaning:
            case ClassificationOutput():
                self._check_classification(spec, meaning)
            case DetectionOutput():
                self._check_detection(spec, meaning)
            case EmbeddingOutput():
                self._check_embedding(spec, meaning)
            case RawOutput():
                self._count_labels(meaning.labels, ("outputs", spec.name))
            case MaskOutput():
                self._check_mask(spec, meaning)
            case TextOutput():
                self._check_text(spec, meaning)
            case _:
                self._check_tensor(spec, meaning)

    def _check_tensor(self, spec: TensorSpec, meaning: OutputDescription) -> None:
        """Check outputs that are read as they are."""
        floats = spec.dtype.startswith("float")
        if not floats and meaning.kind in ("regression", "probability", "signal", "picture"):
            raise self._make_error(
                ("outputs", spec.name, "kind"),
                f"the output is {spec}, and a {meaning.kind} has floats",
                "describe the output that holds them, or remove the description",
            )
        shape = spec.shape or (1, 3, 1, 1)
        if meaning.kind == "picture" and (
            len(shape) != 4 or not any(size in (1, 3) or size == "?" for size in shape[1::2])
        ):
            raise self._make_error(
                ("outputs", spec.name, "kind"),
                f"the output is {spec}, and a picture is [1, C, H, W] or [1, H, W, C] with 1 or 3"
                " channels",
                "describe the output that holds it, or remove the description",
            )
        if isinstance(meaning, TokensOutput) and floats and len(spec.shape or (1, 1)) < 2:
            raise self._make_error(
                ("outputs", spec.name, "kind"),
                f"the output is {spec}, and tokens are integers, or floats [..., ids]",
                "describe the output that holds them, or remove the description",
            )

    def _check_mask(self, spec: TensorSpec, meaning: MaskOutput) -> None:
        place = ("outputs", spec.name)
        labels = self._count_labels(meaning.labels, place)
        shape = spec.shape or ()
        classes = shape[meaning.axis] if len(shape) > 1 else "?"
        floats = spec.dtype.startswith("float")
        if len(shape) == 4 and shape[-meaning.axis] == 1 and classes != 1:
            raise self._make_error(
                (*place, "axis"),
                f"the output is {spec}, with one value for each place on axis {-meaning.axis}",
                f"give axis: {-meaning.axis}",
            )
        if labels and floats and isinstance(classes, int) and classes not in (1, labels):
            raise self._make_error(
                (*place, "labels"),
                f"{meaning.labels!r} has {labels} labels, the output {classes} classes on axis"
                f" {meaning.axis}",
                "give one label a line for each class, in their order, or another 'axis'",
            )

    def _check_text(self, spec: TensorSpec, meaning: TextOutput) -> None:
        place = ("outputs", spec.name)
        symbols = self._count_labels(meaning.labels, place)
        shapes: list[tuple[int | str, ...]] = [(1, "steps", "classes"), ("steps", 1, "classes")]
        if meaning.axis == 1:
            shapes = [(1, "classes", "steps")]
        if not spec.dtype.startswith("float") or not any(_can_be(spec, each) for each in shapes):
            raise self._make_error(
                place,
                f"the output is {spec}, and a text has scores {_join_shapes(shapes)}",
                "describe the output that holds the scores, with 'axis': 1 where classes come"
                " before steps",
            )
        classes = spec.shape[meaning.axis] if spec.shape else "?"
        if isinstance(classes, int) and classes != symbols + 1:
            raise self._make_error(
                (*place, "labels"),
                f"{meaning.labels!r} has {symbols} symbols, and with the blank {symbols + 1}; the"
                f" output is {spec}, with {classes} classes on axis {meaning.axis}",
                "write one symbol a line, in the order of the classes, without the blank; a line"
                " with a space is a symbol; or give another 'axis'",
            )
        if meaning.blank > symbols:
            raise self._make_error(
                (*place, "blank"),
                f"class {meaning.blank} is none of the {symbols + 1} classes",
                f"give 0 to {symbols}, or -1 for the last",
            )

    def _check_classification(self, spec: TensorSpec, meaning: ClassificationOutput) -> None:
        place = ("outputs", spec.name)
        labels = self._count_labels(meaning.labels, place)
        shape = spec.shape or ()
        sizes = [size for size in shape[1:] or shape if size != 1]
        if len(sizes) > 1:
            raise self._make_error(
                place,
                f"the output is {spec}, and a classification is one row of scores",
                "describe the output that holds the scores",
            )
        if labels and sizes and isinstance(sizes[0], int) and sizes[0] != labels:
            raise self._make_error(
                (*place, "labels"),
                f"{meaning.labels!r} has {labels} labels, the output {sizes[0]} classes",
                "give one label a line for each class, in their order",
            )

    def _check_detection(self, spec: TensorSpec, meaning: DetectionOutput) -> None:
        place = ("outputs", spec.name)
        images = [name for name, d in self.loaded.project.inputs.items() if d.image is not None]
        if len(images) != 1:
            raise self._make_error(
                place,
                "a detection's boxes are in the pixels of a picture, and"
                f" {len(images)} inputs are described as images",
                "describe the input that takes the picture: inputs: {NAME: {image: ...}}",
            )
        if self.loaded.project.takes_files:
            raise self._make_error(
                place,
                "a detection's boxes are in the pixels of a picture, and the size of one that the"
                " model decodes is not known outside it",
                "leave 'decode_image' out: preprocess: {in_graph: true} takes pixels",
            )
        labels = self._count_labels(meaning.labels, place)
        if meaning.layout == "ssd":
            self._check_several(spec, meaning, labels)
        else:
            self._check_rows(spec, meaning, labels)

    def _check_rows(self, spec: TensorSpec, meaning: DetectionOutput, labels: int) -> None:
        """Check the one output of a layout that has all in its rows."""
        place = ("outputs", spec.name)
        boxes = self._count_boxes(spec, meaning)
        points = count_point_values(meaning.model_dump())
        values: int | str = "values"
        if meaning.layout == "end2end":
            values = OBJECT_VALUES + points
        elif labels:
            values = BEFORE_SCORES[meaning.layout] + labels + points
        shapes: list[tuple[int | str, ...]] = [(1, boxes, values)]
        if meaning.layout == "yolo":
            shapes.append((1, values, boxes))
        if not any(_can_be(spec, shape) for shape in shapes):
            wanted = _join_shapes(shapes)
            raise self._make_error(
                place,
                f"the output is {spec}; the layout {meaning.layout!r} with {labels or 'no'} labels"
                f"{_describe_points(meaning)} is {wanted}",
                "choose the layout that the model was exported with, and one label per class"
                + (", and its 'keypoints' and 'keypoint_values'" if points else ""),
            )
        sizes = [size for size in (spec.shape or ())[1:] if isinstance(size, int)]
        least = BEFORE_SCORES.get(meaning.layout, 0) + points
        # Without labels the smaller axis is the row.
        if points and values == "values" and len(sizes) == 2 and min(sizes) <= least:
            raise self._make_error(
                (*place, "keypoints"),
                f"the output is {spec}; a box{_describe_points(meaning)} has {least} values and a"
                " score per class",
                "give the number of keypoints that the model was made with, and keypoint_values: 2"
                " where they have no score",
            )

    def _check_several(self, spec: TensorSpec, meaning: DetectionOutput, labels: int) -> None:
        """Check the outputs of the layout ``ssd``."""
        place = ("outputs", spec.name)
        boxes: int | str = "boxes"
        if meaning.priors is not None:
            self._find_file(meaning.priors, (*place, "priors"))
            boxes = len(self.loaded.read_priors(meaning.priors))
            if not _can_be(spec, (1, boxes, 4)):
                raise self._make_error(
                    (*place, "priors"),
                    f"{meaning.priors!r} has {boxes} boxes, and the output is {spec}",
                    "write one line for each box, in the model's order",
                )
        self._check_shape(spec, place, (1, boxes, 4))
        boxes = spec.shape[1] if spec.shape and boxes == "boxes" else boxes
        scored: tuple[int | str, ...] = (1, boxes, "classes")
        if labels:
            scored = (1, boxes, labels + bool(meaning.background))
        for key, name in (("scores", meaning.scores), ("classes", meaning.classes)):
            if name is not None:
                shape = (1, boxes) if meaning.classes else scored
                self._check_shape(self._find_beside(spec, key, name), (*place, key), shape)

    def _find_beside(self, spec: TensorSpec, key: str, name: str) -> TensorSpec:
        """Return an output that another one is read with."""
        described = self.loaded.project.outputs
        place = ("outputs", spec.name, key)
        if name not in self.outputs:
            raise self._make_error(
                place,
                f"the model has no output {name!r}",
                suggest_nearest(name, list(self.outputs)),
            )
        if name in self.loaded.project.state:
            raise self._make_error(
                place, f"the output {name!r} is a state", "name another output, or change 'state'"
            )
        readers = [
            n for n, each in described.items() for read in list_read_too(each) if read == name
        ]
        if len(readers) > 1 or not isinstance(described.get(name, RawOutput()), RawOutput):
            raise self._make_error(
                place,
                f"the output {name!r} is described twice: here and by"
                f" {next((n for n in readers if n != spec.name), name)!r}",
                "let one description name each output",
            )
        return self.outputs[name]

    def _check_shape(self, spec: TensorSpec, place: _Place, shape: tuple[int | str, ...]) -> None:
        if not _can_be(spec, shape):
            raise self._make_error(
                place,
                f"the output is {spec}; for the layout 'ssd' it has to be"
                f" [{', '.join(map(str, shape))}]",
                "name the outputs that hold boxes, scores and classes, give one label per class,"
                " and 'background' where class 0 is no object",
            )

    def _count_boxes(self, spec: TensorSpec, meaning: DetectionOutput) -> int | str:
        """Return how many boxes the output has where the layout says so, else a name for it."""
        if meaning.strides is None:
            return "boxes"
        width, height = self.loaded.project.input_size or (0, 0)
        boxes = count_cells(meaning.strides, (width, height))
        if not _can_be(spec, (1, boxes, "values")):
            raise self._make_error(
                ("outputs", spec.name, "strides"),
                f"the output is {spec}; with the strides {list(meaning.strides)} an input of"
                f" {width} x {height} pixels has [1, {boxes}, values]",
                "give the strides that the model was made with, and 'resize' its input's size",
            )
        return boxes

    def _check_embedding(self, spec: TensorSpec, meaning: EmbeddingOutput) -> None:
        place = ("outputs", spec.name)
        pooled = meaning.pooling != "none"
        if pooled and not _can_be(spec, ("batch", "positions", "values")):
            raise self._make_error(
                (*place, "pooling"),
                f"the output is {spec}, and pooling takes [batch, positions, values]",
                "give pooling: none",
            )
        if meaning.mask is None:
            return
        for name, tokens in self.loaded.project.texts.items():
            sizes = self.inputs[name].shape
            if meaning.mask == tokens.attention_mask and sizes and isinstance(sizes[1], int):
                raise self._make_error(
                    (*place, "mask"),
                    f"{meaning.mask!r} is made in the model, up to {sizes[1]} tokens, and is not"
                    " known outside it",
                    "let the number of tokens be symbolic, so that there are none to hide, or leave"
                    " 'tokenize' out",
                )
        mask = self.inputs.get(meaning.mask)
        if mask is None or not _can_be(mask, ("batch", "positions")):
            raise self._make_error(
                (*place, "mask"),
                f"the model has no input {meaning.mask!r} [batch, positions]",
                suggest_nearest(meaning.mask, list(self.inputs)),
            )

    def _count_labels(self, name: str | None, place: _Place) -> int:
        """Return how many labels there are."""
        if name is None:
            return 0
        number = len(read_labels(self._find_file(name, (*place, "labels"))))
        if not number:
            raise self._make_error(
                (*place, "labels"), f"{name!r} is empty", "write one label a line"
            )
        return number

    def _find_file(self, name: str, place: _Place) -> str:
        files = self.loaded.project.files
        if name not in files or str(PurePosixPath(name)) != name:
            raise self._make_error(
                place,
                f"{name!r} is none of the project's files",
                f"add it to the bundle, spelled alike in both places: files: [{name}]",
            )
        try:
            path = self.loaded.made_files.get(name, self.loaded.folder / name)
            return path.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise self._make_error(
                place, f"cannot read {name!r} as text: {error}", "check the file: it is UTF-8"
            ) from error

    def _make_error(self, place: _Place, problem: str, hint: str) -> ProfileError:
        return ProfileError(problem, hint=hint, where=self.loaded.locate(*place))


def _explain_other_tokenizer(text: str, *, in_graph: bool) -> str:
    """Return the hint for a tokenizer that edgepack does not support."""
    ids = "leave 'tokens' out and give token ids"
    if not in_graph:
        with contextlib.suppress(TokenizerError):
            parse_tokenizer(text)
            ids += ", or let models for Linux do it: preprocess: {extensions: [tokenize]}"
    return f"{ids}; docs/answers.md says what there is for other tokenizers"


def _is_for_ids(spec: TensorSpec, length: int | str) -> bool:
    return spec.dtype in ("int32", "int64") and _can_be(spec, (1, length))


def _describe_points(meaning: DetectionOutput) -> str:
    if meaning.keypoints is None:
        return ""
    return f" and {meaning.keypoints} keypoints of {meaning.keypoint_values} values"


def _join_shapes(shapes: Iterable[Sequence[int | str]]) -> str:
    return " or ".join(f"[{', '.join(map(str, shape))}]" for shape in shapes)


def _can_be(spec: TensorSpec, shape: Sequence[int | str]) -> bool:
    """Return whether a tensor may have a shape, in which names stand for any size."""
    if spec.shape is None:
        return True
    return len(spec.shape) == len(shape) and all(
        own == size or isinstance(own, str) or isinstance(size, str)
        for own, size in zip(spec.shape, shape, strict=True)
    )
