"""What variants answer beside the reference's answers, as rows of text with a verdict for each.

Pure: no files, no models. The first of the columns is the reference, which is fp32 where there is
one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from edgepack.base.arrays import Array
from edgepack.metrics.objects import compute_overlap, compute_share
from edgepack.ondevice.runtime.edgepack_answers import Class, Detection
from edgepack.ondevice.runtime.edgepack_ctc import Transcription
from edgepack.trying import tensors
from edgepack.trying.maps import MapKind
from edgepack.trying.matching import Row as Object
from edgepack.trying.matching import match_detections
from edgepack.trying.verdicts import REFERENCE, Block, Compared, Level, Numbers, TrialCell, TrialRow

SHOWN = 30
"""Objects that get a row; all of them are counted and drawn."""
NEAR_SCORE = 0.1
"""A difference of scores from which an answer is near, not the same."""
NEAR_OVERLAP = 0.75
"""An overlap of boxes below which an answer is near, not the same."""


def make_block(
    output: str, kind: str, answers: Sequence[Any], shown: MapKind | None = None
) -> Block:
    """Return one output's answers side by side.

    Args:
        output: Its name.
        kind: As the bundle describes it.
        answers: By column, as :func:`~.edgepack_answers.make_answer` returns them.
        shown: How a raw output is shown, if it is: of scores of classes for each pixel, the best
            ones are compared.
    """
    if kind == "classification":
        return _make_classes_block(output, answers)
    if kind == "detection":
        return _make_objects_block(output, answers)
    if kind == "text":
        return _make_text_block(output, answers)
    if kind == "embedding":
        return _make_columns_block(
            output, kind, answers, tensors.make_vector_cells, tensors.compare_vectors
        )
    if shown is not None and shown.kind == "classes":
        pixels = partial(tensors.compare_pixel_classes, shown)
        return _make_columns_block(output, kind, answers, tensors.make_tensor_cells, pixels)
    return _make_columns_block(
        output, kind, answers, tensors.make_tensor_cells, tensors.compare_tensors
    )


def _make_columns_block(
    output: str,
    kind: str,
    answers: Sequence[Array],
    cells: Callable[[Array], Mapping[str, str]],
    compare: Callable[[Array, Array], Compared],
) -> Block:
    """Return a block with a row for each of ``cells``."""
    compared = (REFERENCE, *(compare(answers[0], answer) for answer in answers[1:]))
    facts = [cells(answer) for answer in answers]
    rows = [TrialRow(key, tuple(TrialCell(fact[key]) for fact in facts)) for key in facts[0]]
    return Block(output, kind, tuple(rows), compared)


def format_class(found: Class | Detection) -> str:
    """Return a class's label, or its index where it has none."""
    return found.label if found.label is not None else f"#{found.index}"


def _format_score(found: Class | Detection) -> str:
    return f"{format_class(found)} {_format_number(found.score)}"


def _format_number(score: float) -> str:
    """Return a share or a logit with enough digits to distinguish answers."""
    return f"{score:.3f}" if abs(score) < 10 else f"{score:.4g}"


def _make_classes_block(output: str, answers: Sequence[Sequence[Class]]) -> Block:
    reference = answers[0]
    rows = []
    for rank in range(max(map(len, answers))):
        wanted = reference[rank].index if rank < len(reference) else None
        cells = [
            _make_class_cell(answer[rank], rank, wanted) if rank < len(answer) else TrialCell("")
            for answer in answers
        ]
        rows.append(TrialRow(f"{rank + 1}.", tuple(cells)))
    compared = (REFERENCE, *(_compare_classes(reference, other) for other in answers[1:]))
    return Block(output, "classification", tuple(rows), compared)


def _make_class_cell(found: Class, rank: int, wanted: int | None) -> TrialCell:
    if found.index == wanted:
        return TrialCell(_format_score(found))
    return TrialCell(f"{_format_score(found)}  (other)", "near" if rank else "differs")


def _compare_classes(reference: Sequence[Class], other: Sequence[Class]) -> Compared:
    best, found = reference[0], other[0]
    numbers: Numbers = {
        "top": found.index,
        "reference_top": best.index,
        "score": found.score,
        "reference_score": best.score,
    }
    if not math.isfinite(found.score):
        return Compared("differs", f"the best score is {found.score}", numbers)
    if found.index != best.index:
        return Compared(
            "differs", f"says {_format_score(found)} for {_format_score(best)}", numbers
        )
    words = f"the same top class, {_format_number(found.score)} for {_format_number(best.score)}"
    ranked, wanted = [each.index for each in other], [each.index for each in reference]
    if ranked != wanted:
        how = "are in another order" if sorted(ranked) == sorted(wanted) else "differ"
        words += f"; the classes behind it {how}"
    far = _compute_farthest(reference, other) > NEAR_SCORE * max(1.0, abs(best.score))
    return Compared("near" if far else "same", words, numbers)


def _compute_farthest(reference: Sequence[Class], other: Sequence[Class]) -> float:
    """Return the most that the score of a class differs; one that is not listed is the last."""
    first, second = ({each.index: each.score for each in side} for side in (reference, other))
    least = min(*first.values(), *second.values())
    return max(abs(first.get(i, least) - second.get(i, least)) for i in {*first, *second})


def _make_text_block(output: str, answers: Sequence[Transcription]) -> Block:
    wanted = answers[0]
    compared = (REFERENCE, *(_compare_texts(wanted, other) for other in answers[1:]))
    texts = [
        TrialCell(_format_text(each), "same" if each.text == wanted.text else "differs")
        for each in answers
    ]
    scores = [TrialCell(_format_number(each.score)) for each in answers]
    rows = (TrialRow("text", tuple(texts)), TrialRow("score", tuple(scores)))
    return Block(output, "text", rows, compared)


def _format_text(found: Transcription) -> str:
    return repr(found.text) if found.text else "no text"


def _compare_texts(reference: Transcription, other: Transcription) -> Compared:
    numbers: Numbers = {
        "equal": float(other.text == reference.text),
        "score": other.score,
        "reference_score": reference.score,
    }
    if other.text != reference.text:
        words = f"reads {_format_text(other)} for {_format_text(reference)}"
        return Compared("differs", words, numbers)
    near = not abs(other.score - reference.score) <= NEAR_SCORE
    words = f"the same text, {_format_number(other.score)} for {_format_number(reference.score)}"
    return Compared("near" if near else "same", words, numbers)


def _make_objects_block(output: str, answers: Sequence[Sequence[Detection]]) -> Block:
    objects = match_detections(answers)
    rows = [
        TrialRow(
            f"{number}.", tuple(make_object_cell(each, column) for column in range(len(answers)))
        )
        for number, each in enumerate(objects[:SHOWN], 1)
    ]
    if len(objects) > SHOWN:
        more = TrialCell(f"and {len(objects) - SHOWN} more")
        rows.append(TrialRow("", (more, *[TrialCell("")] * (len(answers) - 1))))
    if not objects:
        rows.append(TrialRow("", tuple(TrialCell("no object") for _ in answers)))
    compared = (
        REFERENCE,
        *(_compare_objects(objects, column) for column in range(1, len(answers))),
    )
    return Block(output, "detection", tuple(rows), compared)


def make_object_cell(row: Object, column: int) -> TrialCell:
    """Return what one detection has for an object: itself, missing, added, or of another class."""
    wanted, found = row[0], row[column]
    if found is None:
        return TrialCell("(missing)", "differs") if wanted else TrialCell("")
    if wanted is None:
        return TrialCell(f"{_format_score(found)}  (added)", "differs")
    if wanted.index != found.index:
        return TrialCell(f"{_format_score(found)}  (other)", "differs")
    if not column:
        return TrialCell(_format_score(found))
    share = compute_overlap(wanted.box, found.box)
    return TrialCell(
        f"{_format_score(found)}  (overlap {share:.2f})", _judge_object(wanted, found, share)
    )


def _judge_object(wanted: Detection, found: Detection, share: float) -> Level:
    share = min(share, compute_share(wanted, found))
    near = share < NEAR_OVERLAP or abs(found.score - wanted.score) > NEAR_SCORE
    return "near" if near else "same"


def _compare_objects(objects: Sequence[Object], column: int) -> Compared:
    pairs = [(row[0], row[column]) for row in objects if row[0] or row[column]]
    missing = [wanted for wanted, found in pairs if wanted and not found]
    added = [found for wanted, found in pairs if found and not wanted]
    both = [(wanted, found) for wanted, found in pairs if wanted and found]
    other = [(wanted, found) for wanted, found in both if wanted.index != found.index]
    overlaps = [compute_overlap(wanted.box, found.box) for wanted, found in both]
    numbers: Numbers = {
        "reference_objects": len(both) + len(missing),
        "objects": len(both) + len(added),
        "missing": len(missing),
        "added": len(added),
        "other_class": len(other),
        "least_overlap": min(overlaps, default=None),
    }
    total = len(both) + len(missing)
    parts = [f"misses {len(missing)} of {total} ({_format_objects(missing)})"] if missing else []
    parts += [f"adds {len(added)} ({_format_objects(added)})"] if added else []
    parts += [
        f"says {_format_score(found)} for {_format_score(wanted)}" for wanted, found in other[:3]
    ]
    if parts:
        return Compared("differs", ", ".join(parts), numbers)
    if not total:
        return Compared("same", "no object either", numbers)
    near = any(
        _judge_object(wanted, found, share) == "near"
        for (wanted, found), share in zip(both, overlaps, strict=True)
    )
    words = f"all {total} objects" if total > 1 else "the one object"
    return Compared(
        "near" if near else "same", f"{words}, overlap {min(overlaps):.2f} or more", numbers
    )


def _format_objects(objects: Sequence[Detection]) -> str:
    more = ", ..." if len(objects) > 3 else ""
    return ", ".join(_format_score(found) for found in objects[:3]) + more
