"""Tokenizers, outputs, frames and options that are not taken, with what Python says of each.

Written beside the cases of ``vectors.py``, a folder per case: ``tokenizer.json``, or ``case.json``
as an answer or a frame has it, and ``expected.txt``. The other language writes ``found.txt``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from edgepack.ondevice.runtime.edgepack_answers import AnswerOptions, make_answer
from edgepack.ondevice.runtime.edgepack_frames import Frame, Plane, make_pixels
from edgepack.ondevice.runtime.edgepack_images import find_placement
from edgepack.ondevice.runtime.edgepack_layouts import join_outputs
from edgepack.ondevice.runtime.edgepack_wordpiece import TokenizerError, WordPiece

from tests.mobile.proofs import require
from tests.mobile.vectors import (
    LABELS,
    image,
    output,
    piece,
    read_priors,
    ssd,
    tokenizer,
    write_tensor,
    write_tensors,
)

Changes = dict[str, Any]
Shape = tuple[int, ...]

PLAIN = tokenizer()
TOKENIZERS: list[Changes] = [
    {"model": {**PLAIN["model"], "type": "BPE"}},
    {"normalizer": None},
    {"pre_tokenizer": {"type": "Whitespace"}},
    {"post_processor": {"type": "RobertaProcessing"}},
    {"post_processor": {**PLAIN["post_processor"], "single": [piece("[CLS]")]}},
    {"truncation": {"direction": "Left"}},
    {"padding": {"direction": "Left"}},
    {"added_tokens": [{**PLAIN["added_tokens"][0], "content": "caf\u00e9", "rstrip": True}]},
]
"""What is changed in a tokenizer that is taken."""

CLASSES = output(kind="classification")
BOXES = output(kind="detection", layout="yolo")
BOXES5 = output(kind="detection", layout="yolov5")
BOXES_X = output(kind="detection", layout="yolox")
OBJECTS = output(kind="detection", layout="end2end")
MEANS = output(kind="embedding", pooling="mean")
FIRSTS = output(kind="embedding", pooling="cls")
STEPS = output(kind="text", labels="alphabet.txt", blank=2)
STEPS_AXIS_1 = output(kind="text", labels="alphabet.txt", blank=2, axis=1)
PEOPLE = output(kind="detection", layout="yolo", keypoints=5)
FLAT = output(kind="detection", layout="end2end", keypoints=5, keypoint_values=2)
OUTPUTS: list[tuple[Changes, Shape, list[str], Shape | None]] = [
    (CLASSES, (2, 3), [], None),
    (CLASSES, (1, 0), [], None),
    (BOXES, (1, 9), [], None),
    (BOXES, (2, 6, 9), [], None),
    (BOXES, (1, 4, 4), [], None),
    (BOXES, (1, 9, 11), LABELS[:3], None),
    (BOXES5, (1, 9, 5), [], None),
    (BOXES5, (1, 8, 9), LABELS[:3], None),
    (BOXES_X, (1, 1, 5), [], None),
    (BOXES_X, (1, 1, 9), LABELS[:3], None),
    (BOXES_X, (1, 5, 8), LABELS[:3], None),
    (OBJECTS, (1, 9, 7), [], None),
    (OBJECTS, (6, 9), [], None),
    (OBJECTS, (2, 9, 6), LABELS[:3], None),
    (MEANS, (2, 3), [], None),
    (FIRSTS, (2, 0, 4), [], None),
    (BOXES, (1, 0, 0), [], None),
    (MEANS, (2, 3, 4), [], (3, 2)),
    (PEOPLE, (1, 19, 40), [], None),
    (PEOPLE, (1, 21, 40), LABELS[:3], None),
    (PEOPLE, (1, 6, 40), LABELS[:2], None),
    (FLAT, (1, 40, 6), [], None),
    (FLAT, (1, 40, 21), LABELS[:2], None),
    (STEPS, (9, 4), LABELS[:3], None),
    (STEPS, (2, 9, 4), LABELS[:3], None),
    (STEPS, (1, 9, 1), [], None),
    (STEPS, (1, 9, 2), LABELS[:1], None),
    (STEPS, (9, 1, 4), LABELS[:4], None),
    (STEPS, (1, 9, 4), LABELS[:2], None),
    (STEPS_AXIS_1, (4, 1, 9), LABELS[:3], None),
    (STEPS_AXIS_1, (1, 1, 9), [], None),
    (STEPS_AXIS_1, (1, 9, 4), LABELS[:3], None),
]
"""Descriptions with the shape of an output, labels, and the shape of a mask."""
PAIRS, TRIPLES = ssd(), ssd(classes="kinds")
WITHOUT_FIRST, WITH_PRIORS = ssd(background=True), ssd(priors="priors.txt")
SEVERAL: list[tuple[Changes, list[Shape], list[str], str | None]] = [
    (PAIRS, [(1, 9, 5), (1, 9, 2)], [], None),
    (PAIRS, [(2, 9, 4), (2, 9, 2)], [], None),
    (PAIRS, [(9, 4), (9, 2)], [], None),
    (PAIRS, [(1, 9, 4), (1, 8, 2)], [], None),
    (PAIRS, [(1, 9, 4), (1, 9)], [], None),
    (PAIRS, [(1, 9, 4), (1, 9, 0)], [], None),
    (PAIRS, [(1, 9, 4), (1, 9, 2)], LABELS[:3], None),
    (WITHOUT_FIRST, [(1, 9, 4), (1, 9, 1)], [], None),
    (WITHOUT_FIRST, [(1, 9, 4), (1, 9, 3)], LABELS[:3], None),
    (TRIPLES, [(1, 9, 4), (1, 9, 2), (1, 9)], [], None),
    (TRIPLES, [(1, 9, 4), (1, 9), (1, 8)], [], None),
    (TRIPLES, [(1, 9, 4), (1, 9), (9,)], [], None),
    (WITH_PRIORS, [(1, 3, 4), (1, 3, 2)], [], "0.5,0.5,1,1\n" * 2),
    (WITH_PRIORS, [(1, 1, 4), (1, 1, 2)], [], "0.5,0.5,1"),
    (WITH_PRIORS, [(1, 1, 4), (1, 1, 2)], [], "0.5,0.5,1,\n"),
    (WITH_PRIORS, [(1, 1, 4), (1, 1, 2)], [], "0,0,1,1\n\n0,0,1,1\n"),
    (WITH_PRIORS, [(1, 1, 4), (1, 1, 2)], [], "0,0,1,1\n0,0,1,'1\n"),
    (WITH_PRIORS, [(1, 1, 4), (1, 1, 2)], [], "nan,0,1,1\n"),
    (WITH_PRIORS, [(1, 1, 4), (1, 1, 2)], [], "0,0,1,.1\n"),
]
"""Descriptions with the shapes of the outputs that they read, labels, and the text of priors."""
REFUSED_FRAMES = ({"width": 0}, {"height": 0}, {"height": -1}, {"rotation": 45}, {"rotation": -90})
"""What no frame has."""
PICTURE = {"width": 9, "height": 9, "description": image(resize={"letterbox": 8})}


def write_refused(folder: Path) -> None:
    """Write all cases into a folder that need not exist yet."""
    for number, changes in enumerate(TOKENIZERS):
        _write_tokenizer(folder / f"tokenizer-{number}", tokenizer(**changes))
    write_refused_outputs(folder)


def write_refused_outputs(folder: Path) -> None:
    """Write the cases of outputs alone."""
    for number, (description, shape, labels, mask) in enumerate(OUTPUTS):
        _write_output(folder / f"output-{number}", (description, [shape], labels, None), mask)
    for number, several in enumerate(SEVERAL):
        _write_output(folder / f"several-{number}", several, None)


def _write_tokenizer(case: Path, changed: Changes) -> None:
    case.mkdir(parents=True)
    (case / "tokenizer.json").write_text(json.dumps(changed))
    with said(TokenizerError, case / "expected.txt"):
        WordPiece(changed)


def _write_output(
    case: Path,
    several: tuple[Changes, list[Shape], list[str], str | None],
    mask_shape: Shape | None,
) -> None:
    description, shapes, labels, priors = several
    case.mkdir(parents=True)
    given = [np.zeros(shape, np.float32) for shape in shapes]
    mask = None if mask_shape is None else np.ones(mask_shape, np.int64)
    facts = {
        "description": description,
        "labels": labels,
        "outputs": write_tensors(case, description, given),
        "image": PICTURE,
        "priors": priors,
        "mask": None if mask is None else write_tensor(case, "mask", mask),
    }
    (case / "case.json").write_text(json.dumps(facts))
    with said(ValueError, case / "expected.txt"):
        place = find_placement(9, 9, {"letterbox": 8})
        described = description | read_priors(priors)
        make_answer(join_outputs(given), described, labels, place, mask)


def write_refused_frames(folder: Path) -> None:
    """Write frames that are not taken, a folder per case, with what Python says of each."""
    planes = [{"count": 12, "row_stride": 4, "pixel_stride": 1}]
    planes += [{"count": 4, "row_stride": 2, "pixel_stride": 1}] * 2
    plane = {"count": 48, "row_stride": 16, "pixel_stride": 4}
    colours = {"matrix": "bt601", "range": "full", "rotation": 90, "width": 4, "height": 3}
    yuv = {**colours, "format": "yuv420", "planes": planes}
    pixels = {**colours, "format": "rgba", "planes": [plane]}
    wrong = [
        *({**each, **change} for each in (yuv, pixels) for change in REFUSED_FRAMES),
        {**yuv, "planes": planes[:2]},
        *(
            {**yuv, "planes": [*planes[:n], {**planes[n], **change}, *planes[n + 1 :]]}
            for n in range(3)
            for change in ({"pixel_stride": 0}, {"row_stride": 1}, {"count": 3})
        ),
        *(
            {**pixels, "planes": [{**plane, **change}]}
            for change in ({"pixel_stride": 3}, {"row_stride": 15}, {"count": 47})
        ),
    ]
    for number, facts in enumerate(wrong):
        _write_frame(folder / f"frame-{number}", facts)


def _write_frame(case: Path, facts: dict[str, Any]) -> None:
    case.mkdir(parents=True)
    (case / "plane.bin").write_bytes(bytes(64))
    written, given = [], []
    for plane in facts["planes"]:
        strides = {key: plane[key] for key in ("row_stride", "pixel_stride")}
        # A plane lasts to its file's end.
        written.append({"path": "plane.bin", "offset": 64 - plane["count"], **strides})
        given.append(Plane(bytes(plane["count"]), **strides))
    (case / "case.json").write_text(json.dumps({**facts, "planes": written}))
    with said(ValueError, case / "expected.txt"):
        make_pixels(Frame(**{**facts, "planes": given}))


def write_refused_options(folder: Path) -> None:
    """Write options that are not taken, a folder per case, with what Python says of each."""
    many = [f"label {n}" for n in range(12)]
    wrong: list[tuple[dict[str, Any], list[str]]] = [
        *(({name: value}, many) for name in ("score", "iou") for value in (-0.5, 1.5)),
        *(({name: value}, many) for name in ("most", "top") for value in (0, -3)),
        *(({"allow": ["label 3", "cat"]}, names) for names in (many, many[:10], [])),
    ]
    for number, (options, labels) in enumerate(wrong):
        case = folder / f"options-{number}"
        case.mkdir(parents=True)
        scores = np.zeros((1, 12), np.float32)
        facts = {"description": CLASSES, "labels": labels, "options": options}
        written = {**facts, "outputs": [write_tensor(case, "output", scores)]}
        (case / "case.json").write_text(json.dumps(written))
        with said(ValueError, case / "expected.txt"):
            make_answer(scores, CLASSES, labels, options=AnswerOptions(**options))


@contextmanager
def said(kind: type[Exception], file: Path) -> Iterator[None]:
    """Write what the error says that has to come.

    Raises:
        NotHeldError: None does.
    """
    try:
        yield
    except kind as error:
        file.write_text(str(error), encoding="utf-8")
    require(file.exists(), f"{file.parent}: Python takes it")


def compare_refused(cases: Path, results: Path) -> str:
    """Return how much is refused in the same words.

    Raises:
        NotHeldError: Something is taken, or the words are others.
    """
    written = sorted((cases / "refused").iterdir())
    for case in written:
        expected = (case / "expected.txt").read_text("utf-8")
        found = (results / "refused" / case.name / "found.txt").read_text("utf-8")
        require(found == expected, f"{case}: {found!r}, not {expected!r}")
    return f"{len(written)} refusals have the same words"
