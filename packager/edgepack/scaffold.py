"""``edgepack init``: an ``edgepack.yaml`` with what the model tells, and comments for the rest."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator
from pathlib import Path

from edgepack.data.images import image_files
from edgepack.errors import UsageError
from edgepack.harness.edgepack_wordpiece import WordPiece
from edgepack.model.facts import ModelFacts, TensorSpec, model_facts
from edgepack.project import PROJECT_FILE, Project, project_for_model
from edgepack.stored import write_atomically, writing
from edgepack.yaml_source import parse_yaml

NAMES = "names.txt"
TOKENIZER = "tokenizer.json"
_ELSEWHERE = "free some space, or copy the model to a folder that can be written to"


def init(model: Path, *, images: Path | None = None) -> Path:
    """Write ``edgepack.yaml`` beside a model and return its path.

    Where the model tells names of classes, and what they are for, ``names.txt`` is written too,
    unless there is one.

    Raises:
        ModelError: The model cannot be read.
        UsageError: There is a project file already, the images are no folder or fewer than two,
            or the model does not take one image.
        SamplesError: There is no image in the folder.
        ToolError: The model's folder cannot be written to.
    """
    facts = model_facts(model)
    path = model.resolve().parent / PROJECT_FILE
    if path.exists():
        raise UsageError(f"{str(path)!r} is there already", hint="edit it, or move it away first")
    if images is not None:
        _check_images(images, facts)
    relative = os.path.relpath(images, path.parent) if images else None
    lines = [*_lines(project_for_model(model).project.name, facts, relative)]
    lines += _tokens(facts, path.parent / TOKENIZER)
    text = "\n".join(lines) + "\n"
    parse_yaml(text, name=str(path)).parse(Project)
    names = path.with_name(NAMES)
    if _meaning(facts) and not names.exists():
        _write_new(names, "".join(f"{name}\n" for name in class_names(facts)))
    _write_new(path, text)
    return path


def _check_images(images: Path, facts: ModelFacts) -> None:
    if not images.is_dir():
        raise UsageError(
            f"there is no folder {str(images)!r}", hint="name a folder of images", where="--images"
        )
    if image_input(facts) is None:
        described = f"{len(facts.inputs)} inputs: {', '.join(map(str, facts.inputs))}"
        raise UsageError(
            f"the model does not take one float32 image of a known size, but {described}",
            hint="leave --images out, and give the samples as .npz: edgepack init MODEL",
            where="--images",
        )
    if len(image_files(images)) < 2:
        raise UsageError(
            f"there is only one image in {str(images)!r}",
            hint="give at least two different ones, to calibrate with and to evaluate with",
            where="--images",
        )


def _write_new(path: Path, text: str) -> None:
    with writing("a file beside the model", path, _ELSEWHERE):
        write_atomically(path, text)
        path.chmod(0o644)


def _lines(name: str, facts: ModelFacts, images: str | None) -> Iterator[str]:
    yield "# What edgepack builds, and from what. Check with: edgepack build --dry-run"
    yield "schema_version: 1"
    yield f"name: {_quoted(name)}"
    yield "version: 0.1.0"
    yield f"model: {_quoted(facts.name)}"
    yield from _dims(facts)
    yield from _inputs(facts, images)
    yield from _outputs(facts, images)
    yield from _samples(facts, images)
    yield "targets: [host]   # edgepack targets list"
    yield "# limits: {metric_drop: 0.01}   # what int8 may lose, in the metric's unit"


def _dims(facts: ModelFacts) -> Iterator[str]:
    names = sorted(
        {
            size
            for spec in facts.inputs
            for size in spec.shape or ()
            if isinstance(size, str) and size != "?"
        }
    )
    if names:
        yield "# Symbolic dimensions. One that has a value here is fixed in the bundle."
        batch = {spec.shape[0] for spec in facts.inputs if spec.shape}
        values = [f"{_quoted(n)}: 1" for n in names if n in batch]
        yield f"dims: {{{', '.join(values)}}}" if values else f"# dims: {{{_quoted(names[0])}: 1}}"
        rest = [n for n in names if n not in batch]
        if rest:
            yield f"# left symbolic: {', '.join(rest)}"


def _inputs(facts: ModelFacts, images: str | None) -> Iterator[str]:
    image = image_input(facts)
    if image is None:
        return
    size, layout, channels = image
    hash_mark = "" if images else "# "
    yield "# How an image becomes the input: order, scale, then mean and std per channel."
    if not images:
        yield "# Uncomment it when your samples are images."
    yield f"{hash_mark}inputs:"
    yield f"{hash_mark}  {_quoted(facts.inputs[0].name)}:"
    order = "GRAY" if channels == 1 else "RGB"
    resize = (
        f"{{letterbox: {size[0]}, pad: 114}}"
        if facts.metadata.get("task") == "detect" and size[0] == size[1]
        else f"{{short_side: {round(size[0] / 0.875)}, crop: {size[0]}}}"
        if size[0] == size[1]
        else f"{{width: {size[1]}, height: {size[0]}}}"
    )
    yield (
        f"{hash_mark}    image: {{resize: {resize}, order: {order},"
        f" scale: 0.00392157, layout: {layout}}}"
    )
    if names := class_names(facts):
        yield f"# the model knows {len(names)} classes: {', '.join(names[:5])}, ..."


def _outputs(facts: ModelFacts, images: str | None) -> Iterator[str]:
    """Yield what the first output means; a detection needs the image that is described above."""
    about = "# What the output means, so that devices give answers. See docs/answers.md."
    output = facts.outputs[0]
    if meaning := _meaning(facts):
        hash_mark = "" if images or "detection" not in meaning else "# "
        yield about
        yield f"{hash_mark}files: [{NAMES}]"
        yield f"{hash_mark}outputs: {{{_quoted(output.name)}: {meaning}}}"
    elif image_input(facts) and len(output.shape or ()) == 2:
        yield about
        yield f"# outputs: {{{_quoted(output.name)}: {{kind: classification, top: 5}}}}"


def _meaning(facts: ModelFacts) -> str:
    """Return what ultralytics' metadata tells of the first output; nothing where it does not.

    Source: its exporter writes ``task`` and ``names``; a detection without suppression in it is
    ``(batch, 4 + classes, boxes)``, a classification ``(batch, classes)`` after softmax
    (ultralytics/nn/modules/head.py, Detect and Classify, read 2026-11-22).
    """
    task, classes = facts.metadata.get("task"), len(class_names(facts))
    shape = facts.outputs[0].shape or ()
    if classes and task == "detect" and len(shape) == 3 and shape[1] == 4 + classes:
        return f"{{kind: detection, layout: yolo, labels: {NAMES}, score: 0.25, iou: 0.45}}"
    if classes and task == "classify" and shape[1:] == (classes,):
        return f"{{kind: classification, labels: {NAMES}}}"
    return ""


def _tokens(facts: ModelFacts, tokenizer: Path) -> Iterator[str]:
    """Yield how texts become token ids, where a tokenizer that devices can run lies there."""
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


def _samples(facts: ModelFacts, images: str | None) -> Iterator[str]:
    yield "# Calibration samples are needed for int8, evaluation samples for accuracy figures."
    if images:
        yield "# One folder for both is split 80 to 20 by content."
        yield "samples:"
        yield f"  calibration: {{images: {_quoted(images)}, limit: 100}}"
        yield f"  evaluation: {{images: {_quoted(images)}}}   # labels: labels.csv, or folders"
        return
    keys = ", ".join(f"{_quoted(spec.name)}" for spec in facts.inputs)
    yield f"# An .npz has one array per input ({keys}); its leading axis counts the samples."
    yield "# samples:"
    yield "#   calibration: {path: calibration.npz}"
    yield "#   evaluation: {path: evaluation.npz, labels: labels, metric: top1}"


def image_input(facts: ModelFacts) -> tuple[tuple[int, int], str, int] | None:
    """Return height and width, layout and channels if the model takes one image, else None."""
    if len(facts.inputs) != 1 or facts.inputs[0].dtype != "float32":
        return None
    shape = _filled(facts.inputs[0], facts)
    if shape is None or len(shape) != 4 or not (shape[0] == 1 or isinstance(shape[0], str)):
        return None
    for layout, channel, size in (("NCHW", shape[1], shape[2:]), ("NHWC", shape[3], shape[1:3])):
        if channel in (1, 3) and all(isinstance(side, int) and side > 0 for side in size):
            height, width = size
            return (int(height), int(width)), layout, int(channel)
    return None


def _filled(spec: TensorSpec, facts: ModelFacts) -> tuple[int | str, ...] | None:
    """Return the shape, with the image size that ultralytics writes into the metadata."""
    size = _literal(facts.metadata.get("imgsz", ""))
    is_size = isinstance(size, list) and [type(side) for side in size] == [int, int]
    if spec.shape and len(spec.shape) == 4 and isinstance(size, list) and is_size:
        sides = zip(spec.shape[2:], size, strict=True)
        return (*spec.shape[:2], *(own if isinstance(own, int) else side for own, side in sides))
    return spec.shape


def class_names(facts: ModelFacts) -> list[str]:
    """Return the class names in the model's metadata, by index; none where they are not numbered.

    Ultralytics writes a dict of index to name.
    """
    names = _literal(facts.metadata.get("names", ""))
    if not isinstance(names, dict) or set(names) != set(range(len(names))):
        return []
    return [" ".join(str(names[index]).split()) for index in range(len(names))]


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _quoted(text: str) -> str:
    """Return text as a YAML scalar that reads back as itself: JSON strings are YAML."""
    plain = text.replace("-", "").replace("_", "").replace(".", "").isalnum() and text.isascii()
    if plain and text[0].isalpha() and not _is_word(text):
        return text
    return json.dumps(text, ensure_ascii=False)


def _is_word(text: str) -> bool:
    return text.lower() in ("true", "false", "null")
