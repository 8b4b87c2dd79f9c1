"""What a model expects of pictures, as far as it tells; and which of several ways photos favour."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgepack.base.processes import Workers
from edgepack.errors import EdgepackError
from edgepack.model.facts import ModelFacts, TensorSpec
from edgepack.model.ir import loadable
from edgepack.model.reading import read_structure
from edgepack.preprocessing.alternatives import RGB_MEAN, RGB_STD
from edgepack.preprocessing.beginning import Beginning, find_beginning
from edgepack.preprocessing.ranking import RankedWay
from edgepack.project.inputs import ImageInput, Letterbox
from edgepack.samples.sample_set import SampleSet, write_sample_set
from edgepack.samples.sources import read_image_samples
from edgepack.steps.proofs.input_check import InputCheck, rank_ways

_TELLING = 0.7
"""The share of the bits that predictions can say about photos: with less, photos favour no way."""
_NEAR = 0.5
"""The largest distance from the first BatchNormalization, in nats, that counts as near."""
_LEVEL = 0.00392157


@dataclass(frozen=True)
class Guess:
    """How pictures become the input, and why."""

    image: ImageInput
    why: str
    """The reason for scale, mean and std; empty where they are the usual ones."""
    is_told: bool
    """Whether the model itself shows the scale, so that only the channel order is left to try."""


def read_guess(facts: ModelFacts, model: Path, image: ImageInput) -> Guess:
    """Return what the model shows about the scale, in its metadata or its first nodes.

    Args:
        facts: Of the model, with one input, of pictures.
        model: The file.
        image: With the usual scale.

    Raises:
        ModelError: The model cannot be read.
    """
    if "names" in facts.metadata and "stride" in facts.metadata:
        # What ultralytics' exporter writes; it trains on RGB from 0 to 1.
        return Guess(_resize_as_ultralytics(image), "as ultralytics exports", is_told=True)
    if found := _PIXEL_RANGES.get(facts.metadata.get(_PIXEL_RANGE, "")):
        order = "BGR" if "Bgr" in facts.metadata.get(_PIXEL_FORMAT, "") else image.order
        return Guess(
            _scale_image(image, *found, order=order), f"metadata {_PIXEL_RANGE}", is_told=True
        )
    start = find_beginning(read_structure(model), facts.inputs[0].name)
    if start.highest is not None:
        names = " and ".join(map(repr, start.nodes))
        scale = 1.0 if start.highest > 1 else _LEVEL
        why = f"the model begins with {names}, which take 0 to {start.highest:g}"
        return Guess(_scale_image(image, scale), why, is_told=True)
    return _guess_normalization(image, start)


def _resize_as_ultralytics(image: ImageInput) -> ImageInput:
    """Return a description with the filter of its letterbox; its classifiers take Pillow's.

    Source: ultralytics/data/augment.py, LetterBox and classify_transforms.
    """
    if not isinstance(image.resize, Letterbox):
        return image
    resize = image.resize.model_copy(update={"filter": "cv2-linear"})
    return image.model_copy(update={"resize": resize})


_PIXEL_RANGE, _PIXEL_FORMAT = "Image.NominalPixelRange", "Image.BitmapPixelFormat"
"""Source: onnx/docs/MetadataProps.md."""
_PIXEL_RANGES: dict[str, tuple[float, float]] = {
    "NominalRange_0_255": (1.0, 0.0),
    "Normalized_0_1": (_LEVEL, 0.0),
    "Normalized_1_1": (2 * _LEVEL, 1.0),
}
"""Scale and mean."""


def _scale_image(
    image: ImageInput, scale: float, mean: float = 0.0, order: str | None = None
) -> ImageInput:
    channels = 1 if image.order == "GRAY" else 3
    means = [mean] * channels if mean else []
    return image.model_copy(update={"scale": scale, "mean": means, "order": order or image.order})


def _guess_normalization(image: ImageInput, start: Beginning) -> Guess:
    """Return the scale and mean that a BatchNormalization on the input itself was trained with."""
    found = start.normalization
    if found is None or not found.direct or start.nodes:
        return Guess(image, "", is_told=False)
    mean, deviation = float(found.mean.mean()), float(np.sqrt(found.variance).mean())
    why = f"the BatchNormalization {found.node!r} saw {mean:.3g}, give or take {deviation:.3g}"
    if mean > 8 or deviation > 8:
        return Guess(_scale_image(image, 1.0), why, is_told=True)
    if mean > 0.15 and deviation < 0.6:
        return Guess(image, why, is_told=True)
    if image.order != "GRAY" and abs(mean) < 0.5 and deviation > 0.7:
        changed = {"mean": RGB_MEAN, "std": RGB_STD}
        return Guess(image.model_copy(update=changed), why, is_told=True)
    return Guess(_scale_image(image, 2 * _LEVEL, 1.0), why, is_told=True)


def try_guess(
    guess: Guess,
    model: Path,
    spec: TensorSpec,
    scores_output: str | None,
    files: Sequence[Path],
    labels: Sequence[int] | None,
) -> Guess:
    """Return the guess that photos favour, with the measurement; it runs the model on some of them.

    Where the model does not run, is too large to try, or photos favour no way, the guess stays the
    same and says so.
    """
    with Workers(1) as workers:
        try:
            found, count = workers.call(
                _rank_guesses, model, spec, guess.image, scores_output, list(files), labels
            )
        except EdgepackError as error:
            return _make_guess(guess, f"not tried: {error.problem.splitlines()[0]}")
    others = [e for e in found if not guess.is_told or _is_other_order(e, guess.image)]
    if not found and not guess.is_told:
        return _make_guess(
            guess, "not tried: the outputs do not show it, or there are too few photos"
        )
    if len(others) < 2:
        return guess
    best = others[0]
    tried = f"of {len(others)} ways tried on {count} photos"
    if not _is_telling(best):
        return _make_guess(guess, f"{tried} none stands out")
    image = best.alternative.image if best.alternative else None
    why = f"best {tried}, {best.shown}"
    return _make_guess(Guess(image or guess.image, guess.why, guess.is_told), why)


def _make_guess(guess: Guess, why: str) -> Guess:
    return Guess(guess.image, "; ".join(filter(None, (guess.why, why))), guess.is_told)


def _is_telling(best: RankedWay) -> bool:
    match best.measure:
        case "labels" | "boxes":
            return sum(best.hits) > len(best.hits) / 4
        case "information":
            near = best.divergence is not None and best.divergence < _NEAR
            return near or best.value > _TELLING * best.most
        case "normalization":
            return -best.value < _NEAR
        case "detections":
            return False


def _is_other_order(entry: RankedWay, own: ImageInput) -> bool:
    image = entry.alternative.image if entry.alternative else own
    return image is not None and (image.scale, len(image.mean)) == (own.scale, len(own.mean))


def _rank_guesses(
    model: Path,
    spec: TensorSpec,
    image: ImageInput,
    scores_output: str | None,
    files: Sequence[Path],
    labels: Sequence[int] | None,
) -> tuple[list[RankedWay], int]:
    """Return ways to make the input from photos, best first, and on how many they were tried."""
    step = InputCheck(((spec.name, image),), scores_output, (), "")
    with tempfile.TemporaryDirectory(prefix="edgepack-init-") as folder, loadable(model) as file:
        given = None if labels is None else np.array(labels)
        write_sample_set(Path(folder), (spec,), read_image_samples(files, spec.name, image), given)
        samples = SampleSet.read(Path(folder))
        found, count = rank_ways(step, file, samples)
    return [entry for entry in found if entry.offset == 0], count
