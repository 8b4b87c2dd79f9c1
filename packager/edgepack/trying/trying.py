"""``edgepack try``: what fp32 and each variant of a bundle answer to a photo, a text or a sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.base.files import require_writable
from edgepack.base.progress import Progress, Silent
from edgepack.bundle.archive import open_folder
from edgepack.bundle.manifest import ManifestVariant
from edgepack.bundle.reading import Bundle, verify
from edgepack.bundle.writing import require_writable_folder
from edgepack.errors import ModelError, SamplesError, ToolError, UsageError, suggest_nearest
from edgepack.ondevice.runtime.edgepack_answers import make_json
from edgepack.trying import drawing, maps
from edgepack.trying.comparing import make_block
from edgepack.trying.matching import match_detections
from edgepack.trying.page import write_page, write_pictures
from edgepack.trying.running import Arrays, VariantRun, run_variants
from edgepack.trying.samples import Reader, TrialInput
from edgepack.trying.trial import Column, Drawn, InputTrial, Trial

LIMIT = 12
"""Photos of a folder, and samples of an ``.npz``, unless told otherwise."""

_ANSWERED = ("classification", "detection", "embedding", "text")
"""Kinds of outputs whose answer is another thing than the tensor itself."""

Photo = tuple[np.ndarray[Any, Any], Any]


def try_bundle(  # noqa: PLR0913  (as the command has them)
    path: Path,
    given: Sequence[str] = (),
    *,
    inputs: Mapping[str, str] | None = None,
    variants: Sequence[str] = (),
    limit: int = LIMIT,
    html: Path | None = None,
    out: Path | None = None,
    progress: Progress | None = None,
) -> Trial:
    """Run each variant of a bundle on this machine and compare its answers with fp32's.

    Args:
        path: A bundle's folder or archive.
        given: Photos, folders of photos, texts, WAV files, ``.npz`` and ``.npy`` files.
        inputs: By input, what it gets in every sample: one of these, or a number that fills it.
        variants: Only these, beside fp32; default: all.
        limit: The most photos of a folder and samples of an ``.npz``.
        html: Write a page with all of it there.
        out: Write the pictures into this folder, as PNG.
        progress: Called when a variant is done; default: reports nothing.

    Raises:
        BundleError: The bundle is altered or incomplete.
        SamplesError: An input cannot be read, or is not what the model takes.
        UsageError: There is no such input or variant, nothing is given, or ``html`` or ``out``
            cannot be written.
        ToolError: No variant runs here, or a file cannot be written.
    """
    if html is not None:
        require_writable(html, "--html")
    if out is not None:
        require_writable_folder(out)
    with ExitStack() as stack:
        bundle = verify(open_folder(path, stack))
        reader = Reader(bundle)
        chosen = _choose_variants(bundle, variants)
        samples, said = reader.read(given, inputs or {}, limit)
        feeds = [sample.feed.arrays for sample in samples]
        ran = run_variants(bundle.path, chosen, feeds, progress or Silent())
        trial = _make_trial(bundle, path, reader, samples, _sort_runs(ran), said)
    if html is not None:
        write_page(trial, html)
    if out is not None:
        write_pictures(trial, out)
    return trial


def _choose_variants(bundle: Bundle, wanted: Sequence[str]) -> list[ManifestVariant]:
    """Return the variants to run: those that are asked for, and one that is fp32."""
    listed = bundle.manifest.variants
    known = [variant.id for variant in listed]
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"the bundle has no variant {name!r}",
                hint=suggest_nearest(name, known),
                where="--variant",
            )
    plain = [variant.id for variant in listed if variant.recipe == "fp32"]
    beside = [next((n for n in plain if n.startswith("cpu")), plain[0])] if plain else []
    return [v for v in listed if not wanted or v.id in {*wanted, *beside}]


def _sort_runs(ran: Sequence[VariantRun]) -> list[VariantRun]:
    """Return what ran with the reference first: fp32, as a device runs it where that can be.

    Raises:
        ToolError: Nothing ran.
    """
    able = [each for each in ran if each.outputs]
    if not able:
        reasons = "".join(f"\n  {each.variant}: {each.words}" for each in ran)
        raise ToolError(
            f"no variant of the bundle runs on this machine:{reasons}",
            hint="install what the bundle's requirements.txt lists, or build for this machine:"
            " edgepack build --target host",
        )
    reference = min(able, key=lambda each: (each.recipe != "fp32", bool(each.on_cpu)))
    return [reference, *(each for each in ran if each is not reference)]


def _make_trial(
    bundle: Bundle,
    path: Path,
    reader: Reader,
    samples: Sequence[TrialInput],
    ran: Sequence[VariantRun],
    said: Sequence[str],
) -> Trial:
    reference = ran[0]
    notes = list(said)
    if reference.recipe != "fp32":
        why = "no fp32 variant ran here" if _has_fp32(bundle) else "the bundle has no fp32 variant"
        notes.append(f"{why}: the others are compared with {reference.variant}")
    if len(bundle.manifest.variants) == 1:
        notes.append("the bundle has one variant: there is nothing to compare it with")
    return Trial(
        bundle=bundle.manifest.id,
        path=path,
        reference=reference.variant,
        columns=tuple(
            Column(each.variant, each.recipe, bool(each.outputs), each.crash, each.words)
            for each in ran
        ),
        inputs=tuple(_try_sample(reader, sample, k, ran) for k, sample in enumerate(samples)),
        said=tuple(notes),
    )


def _has_fp32(bundle: Bundle) -> bool:
    return any(variant.recipe == "fp32" for variant in bundle.manifest.variants)


def _try_sample(
    reader: Reader, sample: TrialInput, number: int, ran: Sequence[VariantRun]
) -> InputTrial:
    found = {each.variant: each.outputs[number] for each in ran if each.outputs}
    problems = {name: each for name, each in found.items() if isinstance(each, str)}
    outputs = {name: each for name, each in found.items() if isinstance(each, dict)}
    if not outputs:
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in problems.items())
        raise SamplesError(
            f"no variant takes this input:{reasons}",
            hint="give it the shape and values that the model was made for",
            where=sample.name,
        )
    answers = {name: _find_answers(reader, sample, each) for name, each in outputs.items()}
    return _compare_input(reader, sample, outputs, answers, problems)


def _find_answers(reader: Reader, sample: TrialInput, outputs: Arrays) -> dict[str, Any]:
    try:
        return dict(reader.meaning.make_answers(outputs, sample.feed))
    except ValueError as error:
        raise ModelError(
            f"an output is not as edgepack.yaml describes it: {error}",
            hint="change 'outputs' in edgepack.yaml and build again, or give a photo where boxes"
            " are to be found in one",
            where=sample.name,
        ) from error


def _compare_input(
    reader: Reader,
    sample: TrialInput,
    outputs: Mapping[str, Arrays],
    answers: Mapping[str, Mapping[str, Any]],
    problems: dict[str, str],
) -> InputTrial:
    columns = tuple(outputs)
    first = outputs[columns[0]]
    photo: Photo | None = None
    if sample.picture is not None and sample.place is not None:
        photo = (sample.picture, sample.place)
    blocks, drawn = [], []
    as_written: dict[str, dict[str, Any]] = {}
    for name, output in first.items():
        if name not in answers[columns[0]]:
            continue
        kind = reader.kinds.get(name, "raw")
        shown = maps.find_kind(output, _find_input_size(sample)) if kind not in _ANSWERED else None
        # Tensors are compared and drawn as they are.
        found = answers if kind in _ANSWERED else outputs
        given = [found[column][name] for column in columns]
        blocks.append(make_block(name, kind, given, shown))
        listed = kind in ("classification", "detection", "text")
        as_written[name] = {
            column: make_json(answers[column][name]) if listed else None for column in columns
        }
        if kind == "detection" and photo is not None:
            drawn += _draw_boxes(name, columns, given, photo[0])
        elif shown is not None:
            drawn += _draw_maps(name, columns, given, shown, photo)
    return InputTrial(
        name=sample.name,
        said=sample.said,
        text=sample.text,
        columns=columns,
        problems=problems,
        blocks=tuple(blocks),
        answers=as_written,
        photo=partial(drawing.scale_photo, sample.picture) if sample.picture is not None else None,
        drawn=tuple(drawn),
    )


def _find_input_size(sample: TrialInput) -> tuple[int, int] | None:
    """Return height and width of the model's input; None where it takes no picture."""
    if sample.place is not None:
        return sample.place.input_height, sample.place.input_width
    for array in sample.feed.arrays.values():
        if array.ndim == 4 and (array.shape[1] in (1, 3) or array.shape[3] in (1, 3)):
            channels_first = array.shape[1] in (1, 3)
            return array.shape[2:] if channels_first else array.shape[1:3]
    return None


def _draw_boxes(
    output: str, columns: Sequence[str], answers: Sequence[Any], pixels: np.ndarray[Any, Any]
) -> list[Drawn]:
    rows = match_detections(answers)
    return [
        Drawn(
            output,
            name,
            "",
            partial(drawing.draw_boxes, pixels, drawing.make_marks(rows, column)),
        )
        for column, name in enumerate(columns)
    ]


def _draw_maps(
    output: str,
    columns: Sequence[str],
    arrays: Sequence[np.ndarray[Any, Any]],
    kind: maps.MapKind,
    photo: Photo | None,
) -> list[Drawn]:
    return [
        Drawn(output, name, kind.words, partial(drawing.draw_map, array, kind, arrays[0], photo))
        for name, array in zip(columns, arrays, strict=True)
        if array.shape == arrays[0].shape
    ]
