"""``edgepack init``: writes an ``edgepack.yaml`` from model and photos, and marks guesses."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal, get_args

from edgepack.base.files import SHARED, locked, write_atomically, writing
from edgepack.base.processes import Workers
from edgepack.base.progress import Progress, Silent
from edgepack.base.yaml_source import parse_yaml
from edgepack.builder.cache import open_own_cache
from edgepack.builder.checkpoints import Told, read_checkpoint
from edgepack.builder.cleaning import clean_source, read_source_facts
from edgepack.builder.guesses import Guess, read_guess, try_guess
from edgepack.builder.photos import Photos
from edgepack.builder.recordings import Recordings
from edgepack.builder.sources import convert_source
from edgepack.errors import StepError, UsageError
from edgepack.model.checking import check_carrying, check_session
from edgepack.model.facts import ModelFacts, TensorSpec
from edgepack.ondevice.runtime.edgepack_wordpiece import WordPiece
from edgepack.preprocessing.alternatives import format_yaml_lines
from edgepack.project.inputs import Filter, ImageInput, Letterbox, ShortSideCrop, Stretch
from edgepack.project.loading import PROJECT_FILE, LoadedProject, make_project
from edgepack.project.project import Project
from edgepack.samples.images import list_image_files

_MARK = "   # guessed, check"
NAMES = "names.txt"
TOKENIZER = "tokenizer.json"
_ELSEWHERE = "free some space, or copy the model to a folder that can be written to"


def init(
    model: Path,
    *,
    images: Path | None = None,
    sounds: Path | None = None,
    python: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write ``edgepack.yaml`` beside a model and return its path.

    Where the model has class names and says what they are for, ``names.txt`` is written too, unless
    it exists. ``progress`` gets a note about each problem of the model or photos at which a build
    would stop. A model that is not ONNX is converted, in the environment that ``python`` names.

    Raises:
        ModelError: The model cannot be read.
        UsageError: There is a project file already, images or sounds are no folder or fewer than
            two, both are given, or the model does not take one.
        SamplesError: There is no image or sound in the folder, or a sound cannot be read.
        ToolError: The model's folder cannot be written to.
    """
    _require_one(images, sounds)
    path = model.resolve().parent / PROJECT_FILE
    if path.exists():
        raise _make_there_error(path)
    progress = progress or Silent()
    loaded, refused = _open(model, python, progress)
    facts = read_source_facts(loaded)
    if images is not None:
        _check_images(images, facts)
    photos = Photos.of(images, path.parent, facts) if images else None
    recordings = Recordings.of(sounds, path.parent, facts) if sounds else None
    told = _read_told(model, facts, photos)
    guess = _guess(loaded.model_path, facts, photos, told)
    classes = _find_class_names(facts, told)
    known = _Known(guess, photos, recordings, told, classes)
    lines = [*_format_project(loaded.project.name, facts, known)]
    lines += _format_tokens(facts, path.parent / TOKENIZER)
    text = "\n".join(lines) + "\n"
    parse_yaml(text, name=str(path)).parse(Project)
    names = path.with_name(NAMES)
    if _find_meaning(facts, classes) and not names.exists():
        with writing("a file beside the model", names, _ELSEWHERE):
            labels = "".join(f"{name}\n" for name in classes)
            write_atomically(names, labels, mode=SHARED)
    with writing("a file beside the model", path, _ELSEWHERE), locked(path, mode=SHARED) as file:
        if file.stat().st_size:  # another command was quicker
            raise _make_there_error(path)
        write_atomically(file, text)
    for warning in (*refused, *_list_warnings(loaded.model_path, facts, photos)):
        progress.note(f"warning: {warning}")
    return path


def _open(model: Path, python: str | None, progress: Progress) -> tuple[LoadedProject, list[str]]:
    """Return the project of a bare model as a build begins with it, or why it cannot be cleaned."""
    loaded = convert_source(make_project(model), open_own_cache(), progress, python)
    try:
        return clean_source(loaded, open_own_cache(), Silent()), []
    except StepError as error:
        return loaded, [f"a build refuses this model: {error.problem}; {error.hint}"]


def _require_one(images: Path | None, sounds: Path | None) -> None:
    if images is not None and sounds is not None:
        raise UsageError("--images and --sounds are given", hint="a model takes one of the two")


def _make_there_error(path: Path) -> UsageError:
    return UsageError(f"{str(path)!r} is there already", hint="edit it, or move it away first")


def _list_warnings(model: Path, facts: ModelFacts, photos: Photos | None) -> Iterator[str]:
    """Yield problems at which a build would stop."""
    with Workers(1) as workers:
        blocked = workers.call(check_session, model) or check_carrying(facts)
    for finding in blocked:
        yield f"a build refuses this model: {finding.reason}; {finding.remedy}"
    for error in photos.broken if photos else ():
        yield f"a build will stop at a photo: {error.problem}; {error.hint}"


def _check_images(images: Path, facts: ModelFacts) -> None:
    if not images.is_dir():
        raise UsageError(
            f"there is no folder {str(images)!r}", hint="name a folder of images", where="--images"
        )
    if find_image_input(facts) is None:
        described = f"{len(facts.inputs)} inputs: {', '.join(map(str, facts.inputs))}"
        raise UsageError(
            "the model does not take one float32 image whose sides are known, or have names that"
            f" 'dims' can give sizes to, but {described}",
            hint="leave --images out, and give the samples as .npz: edgepack init MODEL",
            where="--images",
        )
    if len(list_image_files(images)) < 2:
        raise UsageError(
            f"there is only one image in {str(images)!r}",
            hint="give at least two different ones, to calibrate with and to evaluate with",
            where="--images",
        )


@dataclass(frozen=True)
class _Known:
    """What a project file is written from, beside the facts of the model."""

    guess: Guess | None
    photos: Photos | None
    recordings: Recordings | None
    told: Told
    classes: tuple[str, ...]


def _read_told(model: Path, facts: ModelFacts, photos: Photos | None) -> Told:
    """Return what the checkpoint's files say; nothing where the model takes no picture."""
    found = find_image_input(facts)
    if found is None:
        return Told()
    return read_checkpoint(model, _make_usual_image(found, facts, photos))


def _find_class_names(facts: ModelFacts, told: Told) -> tuple[str, ...]:
    """Return the class names in the model's metadata, or else in the checkpoint's files."""
    own = tuple(read_class_names(facts))
    fits = has_scores(facts) and len(told.classes) == (facts.outputs[0].shape or (0, 0))[1]
    return own or (told.classes if fits else ())


def _guess(model: Path, facts: ModelFacts, photos: Photos | None, told: Told) -> Guess | None:
    """Return how pictures become the input; None where the model takes none."""
    found = find_image_input(facts)
    if found is None:
        return None
    if told.image is not None:
        return Guess(told.image, told.why, is_told=True)
    guess = read_guess(facts, model, _make_usual_image(found, facts, photos))
    if photos is None:
        return guess
    scores = facts.outputs[0].name if has_scores(facts) else None
    labels = photos.find_labels(photos.looked_at)
    return try_guess(guess, model, facts.inputs[0], scores, photos.looked_at, labels)


def _make_usual_image(found: PictureInput, facts: ModelFacts, photos: Photos | None) -> ImageInput:
    """Return a description with the usual scale: a crop for classes, else the whole picture."""
    height, width = found.size
    resize: Letterbox | ShortSideCrop | Stretch = Stretch(width=width, height=height)
    fitting = photos is not None and photos.is_of_size(height, width)
    if height == width and not fitting and not has_scores(facts):
        resize = Letterbox(letterbox=height)
    elif height == width and not fitting:
        resize = ShortSideCrop(short_side=round(height / 0.875), crop=height)
    order: Literal["GRAY", "RGB"] = "GRAY" if found.channels == 1 else "RGB"
    return ImageInput(resize=resize, order=order, scale=0.00392157, layout=found.layout)


def _format_project(name: str, facts: ModelFacts, known: _Known) -> Iterator[str]:
    photos = known.photos
    yield "# What edgepack builds, and from what. Check with: edgepack build --dry-run"
    yield "schema_version: 1"
    yield f"name: {_quote_scalar(name)}"
    yield "version: 0.1.0"
    yield f"model: {_quote_scalar(facts.name)}"
    yield from _format_dims(facts, photos)
    yield from _format_constants(facts)
    yield from _format_state(facts)
    yield from _format_inputs(facts, known)
    yield from _format_outputs(facts, photos, known.classes)
    if known.recordings:
        yield from _format_recordings(known.recordings)
    else:
        yield from _format_samples(facts, photos)
    yield "targets: [host]   # edgepack targets list"
    yield "# limits: {metric_drop: 0.01}   # what int8 may lose, in the metric's unit"


def _format_dims(facts: ModelFacts, photos: Photos | None) -> Iterator[str]:
    shapes = [spec.shape for spec in facts.inputs if spec.shape]
    names = sorted({n for shape in shapes for n in shape if isinstance(n, str) and n != "?"})
    if not names:
        return
    found = find_image_input(facts)
    sides = found.free if found else {}
    # A single dimension is that of the values.
    batch = {shape[0] for shape in shapes if len(shape) > 1}
    known = {name: 1 for name in names if name in batch} | (sides if photos else {})
    yield "# Symbolic dimensions. One that has a value here is fixed in the bundle."
    if known:
        yield f"{_format_dims_line(known)}{_MARK}"
    else:
        yield f"# {_format_dims_line({names[0]: 1})}"
    rest = [name for name in names if name not in known]
    if rest:
        yield f"# left symbolic: {', '.join(rest)}"
    if sides and not photos:
        yield f"# Images need a size: {_format_dims_line({**known, **sides})}"


def _format_constants(facts: ModelFacts) -> Iterator[str]:
    """Yield how inputs of one number, which are settings often, become part of the model."""
    if settings := [spec.name for spec in facts.inputs if spec.shape == ()]:
        values = ", ".join(f"{_quote_scalar(name)}: 0" for name in settings)
        yield "# An input that always has the same value can become part of the model."
        yield f"# constants: {{{values}}}"


def _format_state(facts: ModelFacts) -> Iterator[str]:
    """Yield outputs that may feed an input: of the same kind, and with its name in theirs."""
    pairs: dict[str, str] = {}
    for output, spec in product(facts.outputs, facts.inputs):
        if spec.name in output.name and spec.name not in pairs.values() and _is_alike(spec, output):
            pairs.setdefault(output.name, spec.name)
    if pairs and len(pairs) < len(facts.inputs):
        words = ", ".join(
            f"{_quote_scalar(made)}: {_quote_scalar(given)}" for made, given in pairs.items()
        )
        yield "# Outputs that may be inputs of the next run; samples are frames of streams then."
        yield f"# state: {{{words}}}{_MARK}"


def _is_alike(one: TensorSpec, other: TensorSpec) -> bool:
    """Return whether types, ranks and the sizes that are known agree."""
    first, second = one.shape or (), other.shape or ()
    sizes = zip(first, second, strict=False)
    known = [(a, b) for a, b in sizes if isinstance(a, int) and isinstance(b, int)]
    return one.dtype == other.dtype and len(first) == len(second) and all(a == b for a, b in known)


def _format_dims_line(sizes: Mapping[str, int]) -> str:
    return (
        f"dims: {{{', '.join(f'{_quote_scalar(name)}: {size}' for name, size in sizes.items())}}}"
    )


def _format_inputs(facts: ModelFacts, known: _Known) -> Iterator[str]:
    guess, photos, told = known.guess, known.photos, known.told
    if guess is None:
        return
    hash_mark = "" if photos else "# "
    yield from (f"# {refused}" for refused in told.refused)
    yield "# How an image becomes the input: order, scale, then mean and std per channel."
    if not photos:
        yield "# Uncomment it when your samples are images."
    yield f"{hash_mark}inputs:"
    yield f"{hash_mark}  {_quote_scalar(facts.inputs[0].name)}:"
    yield f"{hash_mark}    image:"
    if guess.why:
        yield f"{hash_mark}      # {guess.why}"
    if told.filter and f"pillow-{told.filter}" not in get_args(Filter):
        yield f"{hash_mark}      # pictures were resized with {told.filter} for it, here bilinear"
    for line in format_yaml_lines(guess.image):
        yield f"{hash_mark}      {line}{'' if _is_told(line, told) else _MARK}"
    if names := known.classes:
        yield f"# the model knows {len(names)} classes: {', '.join(names[:5])}, ..."


def _is_told(line: str, told: Told) -> bool:
    """Return whether a line of an image's description is no guess."""
    if told.image is None or line.startswith("layout"):
        return line.startswith("layout")
    return not (line.startswith("resize") and "guess" in told.why)


def _format_outputs(
    facts: ModelFacts, photos: Photos | None, classes: Sequence[str]
) -> Iterator[str]:
    """Yield what the first output means; a detection needs the image described above."""
    about = "# What the output means, so that devices give answers. See docs/answers.md."
    output = facts.outputs[0]
    if meaning := _find_meaning(facts, classes):
        hash_mark = "" if photos or "detection" not in meaning else "# "
        yield about
        yield f"{hash_mark}files: [{NAMES}]"
        yield f"{hash_mark}outputs: {{{_quote_scalar(output.name)}: {meaning}}}"
    elif (output.shape or ())[1:] == (1,):
        yield "# One number: a score, or a decision (kind: probability, threshold: 0.5)."
        yield f"# outputs: {{{_quote_scalar(output.name)}: {{kind: regression}}}}"
    elif find_image_input(facts) and has_scores(facts):
        yield about
        yield (
            f"# outputs: {{{_quote_scalar(output.name)}: {{kind: classification, top: 5}}}}{_MARK}"
        )
    elif find_image_input(facts):
        yield "# The model does not say what its output means: without 'outputs', devices give"
        yield "# tensors, and int8 is judged by their numbers. See docs/answers.md, evaluating.md."


def _find_meaning(facts: ModelFacts, names: Sequence[str]) -> str:
    """Return what metadata or files say about the first output; empty where none do.

    Source: its exporter writes ``task`` and ``names``; a detection without suppression in it is
    ``(batch, 4 + classes, boxes)``, another ``(batch, boxes, 6)``, a classification
    ``(batch, classes)`` after softmax
    (ultralytics/nn/modules/head.py, Detect and Classify, read 2026-11-22).
    """
    task, classes = facts.metadata.get("task"), len(read_class_names(facts))
    if names and not classes:
        # A file beside the model has as many names as there are scores.
        return f"{{kind: classification, labels: {NAMES}}}"
    shape = facts.outputs[0].shape or ()
    if classes and task == "detect" and len(shape) == 3 and shape[1] == 4 + classes:
        return f"{{kind: detection, layout: yolo, labels: {NAMES}, score: 0.25, iou: 0.45}}"
    if classes and task == "detect" and len(shape) == 3 and shape[2] == 6:
        return f"{{kind: detection, layout: end2end, labels: {NAMES}, score: 0.25}}"
    if classes and task == "classify" and shape[1:] == (classes,):
        return f"{{kind: classification, labels: {NAMES}}}"
    return ""


def _format_tokens(facts: ModelFacts, tokenizer: Path) -> Iterator[str]:
    """Yield how texts become token ids, if there is a tokenizer that devices can run."""
    ids = [s for s in facts.inputs if s.name == "input_ids" and len(s.shape or ()) == 2]
    if not ids or not tokenizer.is_file():
        return
    try:
        WordPiece.parse(tokenizer.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        yield f"# {TOKENIZER} does not run on devices: {str(error).splitlines()[0]}"
        return
    size = (ids[0].shape or ())[1]
    length = size if isinstance(size, int) else 128
    yield f"# With {TOKENIZER}, devices take texts. See docs/answers.md."
    yield f"# files: [{TOKENIZER}]"
    yield f"# inputs: {{input_ids: {{tokens: {{file: {TOKENIZER}, length: {length}}}}}}}"


def _format_recordings(found: Recordings) -> Iterator[str]:
    """Yield how sounds become the input, and the samples."""
    given = found.sound.model_dump(exclude_none=True, exclude_defaults=True)
    keys = ", ".join(f"{key}: {value}" for key, value in given.items())
    yield "# How a sound becomes the input: its values from -1 to 1."
    yield "inputs:"
    if found.others:
        yield f"  # {found.others}: a build stops at these"
    yield f"  {_quote_scalar(found.spec.name)}: {{sound: {{{keys}}}}}{_MARK}"
    yield "# One folder for both is split 80 to 20 by content."
    yield "samples:"
    folder = f"sounds: {_quote_scalar(found.written)}"
    yield f"  calibration: {{{folder}, limit: 100}}"
    labels = f", labels: {found.labels}, metric: top1}}{_MARK}" if found.labels else "}"
    yield f"  evaluation: {{{folder}{labels}"


def _format_samples(facts: ModelFacts, photos: Photos | None) -> Iterator[str]:
    yield "# Calibration samples are needed for int8, evaluation samples for accuracy figures."
    if photos:
        yield "# One folder for both is split 80 to 20 by content."
        yield "samples:"
        yield f"  calibration: {{images: {_quote_scalar(photos.written)}, limit: 100}}"
        evaluation = f"  evaluation: {{images: {_quote_scalar(photos.written)}"
        if photos.labels:
            labels = f"labels: {_quote_scalar(photos.labels)}, metric: top1"
            yield f"{evaluation}, {labels}}}{_MARK}"
        else:
            yield f"{evaluation}}}   # {photos.unlabelled or 'labels: labels.csv, or folders'}"
        return
    keys = ", ".join(f"{_quote_scalar(spec.name)}" for spec in facts.inputs)
    yield f"# An .npz has one array per input ({keys}); its leading axis counts the samples."
    yield "# samples:"
    yield "#   calibration: {path: calibration.npz}"
    yield "#   evaluation: {path: evaluation.npz, labels: labels, metric: top1}"


@dataclass(frozen=True)
class PictureInput:
    """What a model's one input takes."""

    size: tuple[int, int]
    """Height and width; a guess for those that are free."""
    layout: Literal["NCHW", "NHWC"]
    channels: int
    free: dict[str, int]
    """Symbolic dimensions, with the guess."""


def find_image_input(facts: ModelFacts) -> PictureInput | None:
    """Return what the model takes if it is one image, else None."""
    if len(facts.inputs) != 1 or facts.inputs[0].dtype != "float32":
        return None
    shape = _fill_shape(facts.inputs[0], facts)
    if shape is None or len(shape) != 4 or not (shape[0] == 1 or isinstance(shape[0], str)):
        return None
    guessed = 224 if has_scores(facts) else 640
    layouts: tuple[Literal["NCHW", "NHWC"], ...] = ("NCHW", "NHWC")
    for layout, channel, sides in zip(
        layouts, (shape[1], shape[3]), (shape[2:], shape[1:3]), strict=True
    ):
        if channel in (1, 3) and not {"?", 0} & {*sides}:
            free = {side: guessed for side in sides if isinstance(side, str)}
            height, width = (free[s] if isinstance(s, str) else s for s in sides)
            return PictureInput((height, width), layout, int(channel), free)
    return None


def has_scores(facts: ModelFacts) -> bool:
    """Return whether the first output is one row of scores, as classes are given."""
    shape = facts.outputs[0].shape or ()
    return len(shape) == 2 or (len(shape) == 4 and shape[2:] == (1, 1))


def _fill_shape(spec: TensorSpec, facts: ModelFacts) -> tuple[int | str, ...] | None:
    """Return the shape, with the image size that ultralytics writes into the metadata."""
    size = _parse_literal(facts.metadata.get("imgsz", ""))
    is_size = isinstance(size, list) and [type(side) for side in size] == [int, int]
    if spec.shape and len(spec.shape) == 4 and isinstance(size, list) and is_size:
        sides = zip(spec.shape[2:], size, strict=True)
        return (*spec.shape[:2], *(own if isinstance(own, int) else side for own, side in sides))
    return spec.shape


def read_class_names(facts: ModelFacts) -> list[str]:
    """Return the class names in the model's metadata, by index; none where they are not numbered.

    Ultralytics writes a dict of index to name.
    """
    names = _parse_literal(facts.metadata.get("names", ""))
    if not isinstance(names, dict) or set(names) != set(range(len(names))):
        return []
    return [" ".join(str(names[index]).split()) for index in range(len(names))]


def _parse_literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _quote_scalar(text: str) -> str:
    """Return text as a YAML scalar that reads back as itself: JSON strings are YAML."""
    plain = text.replace("-", "").replace("_", "").replace(".", "").isalnum() and text.isascii()
    if plain and text[0].isalpha() and not _is_word(text):
        return text
    return json.dumps(text, ensure_ascii=False)


def _is_word(text: str) -> bool:
    return text.lower() in ("true", "false", "null")
