"""What Python, Kotlin and Swift have to agree on, written by the Python modules.

::

    python -m tests.mobile.vectors FOLDER

``FOLDER`` gets four folders with a folder per case::

    images/<n>/case.json       {width, height, description}
               pixels.bin      uint8 (height, width, 3), RGB
               tensor.bin      float32, little endian
    frames/<n>/case.json       {format, width, height, planes, rotation, matrix, range,
                               description, upright: {width, height}}
               *.bin           what the planes lie in
               rgb.bin         uint8 (upright height, upright width, 3)
               tensor.bin      float32, little endian
               prescaled.bin   the same of averages of the frame's blocks
    answers/<n>/case.json      {description, labels, outputs, image, mask, options,
                               priors, answers}
                *.bin          the tensors of outputs and mask, little endian
    wordpiece/<n>/case.json    {length, pad, texts: [{text, input_ids, attention_mask,
                               token_type_ids}]}
                  tokenizer.json

Descriptions are as the manifest has them. ``planes`` holds one ``{path, offset, row_stride,
pixel_stride}`` each, two of which may share a file. ``outputs`` holds a ``{name, dtype, shape,
path}`` for each output that the answer is read from, the described one first, ``mask`` one or null,
``image`` ``{width, height, description}`` of the picture or null, ``options`` those of
``AnswerOptions`` that are given, or null, ``priors`` the text of the file with them, or null.
``answers`` is what :func:`edgepack_answers.make_json` gives.

Tensors, pictures and ids are equal; indices, labels and the number of answers too; of scores, boxes
and vectors the difference is at most 1e-4 of the value here, plus 1e-6.

Everything is seeded. Pictures of ``EDGEPACK_TEST_DATA`` are added where that is set.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from itertools import count, cycle, product
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from edgepack.ondevice.runtime import edgepack_answers as answers
from edgepack.ondevice.runtime import edgepack_frames as frames
from edgepack.ondevice.runtime import edgepack_images as images
from edgepack.ondevice.runtime import edgepack_layouts as layouts
from edgepack.ondevice.runtime.edgepack_wordpiece import WordPiece
from edgepack.project.inputs import Filter, ImageInput
from edgepack.project.outputs import OutputDescription
from pydantic import TypeAdapter

Description = dict[str, Any]
PHOTOS = 6


def main() -> None:
    """Write all cases into the folder that is named."""
    parser = argparse.ArgumentParser(description="Write what three languages must agree on.")
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)


def write(folder: Path) -> None:
    """Write all cases into a folder that need not exist yet."""
    rng = np.random.default_rng(7)
    for n, (pixels, description) in enumerate(image_cases(rng)):
        write_image(folder / "images" / str(n), pixels, description)
    for n, (frame, description) in enumerate(frame_cases()):
        write_frame(folder / "frames" / str(n), frame, description)
    for n, case in enumerate(answer_cases(rng)):
        write_answer(folder / "answers" / str(n), AnswerCase(*case))
    for n, (described, length, pad) in enumerate(wordpiece_cases()):
        write_wordpiece(folder / "wordpiece" / str(n), described, length, pad=pad)


def write_image(folder: Path, pixels: np.ndarray, description: Description) -> None:
    """Write one picture and its tensor."""
    folder.mkdir(parents=True)
    height, width = pixels.shape[:2]
    write_json(folder / "case.json", width=width, height=height, description=description)
    (folder / "pixels.bin").write_bytes(pixels.tobytes())
    (folder / "tensor.bin").write_bytes(images.make_tensor(pixels, description).tobytes())


def write_frame(folder: Path, frame: frames.Frame, description: Description) -> None:
    """Write a frame, the picture that it is, and its tensor."""
    folder.mkdir(parents=True)
    written: dict[int, str] = {}
    planes = []
    for n, plane in enumerate(frame.planes):
        # A plane is a view of what it lies in.
        buffer = plane.data.base
        path = written.setdefault(id(buffer), f"plane{n}.bin")
        (folder / path).write_bytes(buffer.tobytes())
        strides = {"row_stride": plane.row_stride, "pixel_stride": plane.pixel_stride}
        planes.append({"path": path, "offset": buffer.size - plane.data.size, **strides})
    pixels = frames.make_pixels(frame)
    (folder / "rgb.bin").write_bytes(pixels.tobytes())
    (folder / "tensor.bin").write_bytes(images.make_tensor(pixels, description).tobytes())
    size = (pixels.shape[1], pixels.shape[0])
    factor = images.find_factor(images.find_placement(*size, description["resize"]))
    averages = frames.make_pixels(frame, factor)
    prescaled = images.make_tensor(averages, description, size)
    (folder / "prescaled.bin").write_bytes(prescaled.tobytes())
    facts = vars(frame) | {"planes": planes, "description": description}
    upright = {"width": pixels.shape[1], "height": pixels.shape[0]}
    write_json(folder / "case.json", **facts, upright=upright)


class AnswerCase(NamedTuple):
    """One output, and all that its answer depends on."""

    description: Description
    output: np.ndarray | list[np.ndarray]
    """The described one, or that one and those that it is read with."""
    labels: list[str]
    image: Description | None = None
    mask: np.ndarray | None = None
    options: Description | None = None
    priors: str | None = None


def write_answer(folder: Path, case: AnswerCase) -> None:
    """Write one output and the answer that it is."""
    folder.mkdir(parents=True)
    place = None
    if case.image:
        resize = case.image["description"]["resize"]
        place = images.find_placement(case.image["width"], case.image["height"], resize)
    options = answers.AnswerOptions(**case.options) if case.options else None
    outputs = case.output if isinstance(case.output, list) else [case.output]
    given = answers.make_answer(
        layouts.join_outputs(outputs),
        case.description | read_priors(case.priors),
        case.labels,
        place,
        case.mask,
        options,
    )
    tensors = {
        "outputs": write_tensors(folder, case.description, outputs),
        "mask": None if case.mask is None else write_tensor(folder, "mask", case.mask),
    }
    written = case._asdict() | tensors | {"answers": answers.make_json(given)}
    del written["output"]
    write_json(folder / "case.json", **written)


def write_wordpiece(folder: Path, tokenizer: Description, length: int, *, pad: bool) -> None:
    """Write one tokenizer and what it makes of the texts."""
    folder.mkdir(parents=True)
    wordpiece = WordPiece(tokenizer)
    encoded = [
        {"text": text, **wordpiece.encode(text, length, pad=pad)._asdict()}
        for text in (*TEXTS, *drawn_texts())
    ]
    write_json(folder / "case.json", length=length, pad=pad, texts=encoded)
    text = json.dumps(tokenizer, ensure_ascii=False)
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")


def read_priors(text: str | None) -> Description:
    """Return what a description has of its file of priors."""
    return {} if text is None else {"prior_boxes": layouts.read_priors(text)}


def write_tensors(
    folder: Path, description: Description, outputs: list[np.ndarray]
) -> list[Description]:
    """Write the described output, and those that it is read with."""
    names = ["output", *layouts.list_read_too(description)]
    return [write_tensor(folder, *each) for each in zip(names, outputs, strict=True)]


def write_tensor(folder: Path, name: str, array: np.ndarray) -> Description:
    """Write a tensor beside the case, and return what the case says of it."""
    (folder / f"{name}.bin").write_bytes(array.tobytes())
    return {
        "name": name,
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "path": f"{name}.bin",
    }


def write_json(path: Path, **values: object) -> None:
    path.write_text(json.dumps(values, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def image(**values: object) -> Description:
    """Return an image's description as the manifest has it."""
    return ImageInput.model_validate(values).model_dump(mode="json")


def output(**values: object) -> Description:
    """Return an output's description as the manifest has it."""
    adapter: TypeAdapter[OutputDescription] = TypeAdapter(OutputDescription)
    return adapter.dump_python(adapter.validate_python(values), mode="json")


IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
DESCRIPTIONS = [
    image(resize={"letterbox": 64}, scale=0.00392157),
    image(resize={"letterbox": 33, "pad": 0}, order="BGR", layout="NHWC"),
    image(resize={"short_side": 40, "crop": 32}, scale=0.00392157, **IMAGENET),
    image(resize={"short_side": 37, "crop": 30}, order="GRAY", mean=[127.5], std=[127.5]),
    image(resize={"width": 48, "height": 20}, order="BGR", mean=[103.94, 116.78, 123.68]),
    image(resize={"width": 17, "height": 90}, order="GRAY", layout="NHWC", scale=0.0078125),
]
# Smaller, larger, of the same size in one or both directions, and such as lose much more height
# than width, where the columns are resized first.
SIZES = [(1, 1), (2, 300), (300, 2), (64, 64), (40, 32), (48, 20), (49, 63), (97, 31), (31, 97),
         (130, 200), (201, 133), (32, 240)]  # fmt: skip
# Scaled as this says, they have thousands of megapixels, of which next to nothing is kept.
THIN = [(1, 65535), (65535, 1), (2, 40000)]
CUT = image(resize={"short_side": 256, "crop": 96}, scale=0.00392157)


FILTERS: list[dict[str, object]] = [
    *({"filter": name} for name in get_args(Filter)),
    {"filter": "torchvision-bilinear", "antialias": False},
    {"filter": "torchvision-bicubic", "antialias": False},
    {"filter": "tf-bilinear", "antialias": True},
]
FILTERED: list[dict[str, Any]] = [
    {"resize": {"letterbox": 33, "pad": 7}, "scale": 0.00392157, **IMAGENET},
    {"resize": {"short_side": 37, "crop": 30}, "order": "GRAY", "layout": "NHWC"},
    {"resize": {"width": 20, "height": 16}, "order": "BGR", "mean": [103.94, 116.78, 123.68]},
]
# Also such whose sides are twice, three times and other whole numbers of the last one's.
FILTERED_SIZES = [(1, 1), (1, 50), (50, 1), (2, 3), (20, 16), (40, 32), (60, 32), (100, 80),
                  (49, 63), (97, 31), (131, 201), (21, 17), (32, 240)]  # fmt: skip


def filtered_cases(rng: np.random.Generator) -> Iterator[tuple[np.ndarray, Description]]:
    """Yield pictures for every filter: larger and smaller, of one pixel, long and thin."""
    for given, chosen in product(FILTERED, FILTERS):
        description = image(**{**given, "resize": {**given["resize"], **chosen}})
        for width, height in FILTERED_SIZES:
            yield picture(rng, width, height), description
    for chosen in FILTERS:
        resize = {"short_side": 25, "crop": 24, **chosen}
        yield picture(rng, 3, 4001), image(resize=resize)
        yield picture(rng, 4001, 3), image(resize=resize, order="GRAY")


def image_cases(rng: np.random.Generator) -> Iterator[tuple[np.ndarray, Description]]:
    yield from filtered_cases(rng)
    for description in DESCRIPTIONS:
        for width, height in SIZES:
            yield picture(rng, width, height), description
    for width, height in THIN:
        for description in (*DESCRIPTIONS, CUT):
            yield picture(rng, width, height), description
    for pixels in photographs():
        for description in DESCRIPTIONS[:4]:
            yield pixels, description


def picture(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Return noise that reaches 0 and 255, whose rounding a resize has to get right."""
    noise = rng.integers(-40, 296, (height, width, 3))
    return np.clip(noise, 0, 255).astype(np.uint8)


def photographs() -> Iterator[np.ndarray]:
    """Yield public photographs, upright and as RGB, at their full size."""
    from PIL import Image, ImageOps

    if data := os.environ.get("EDGEPACK_TEST_DATA"):
        files = sorted((Path(data) / "imagenet" / "images").rglob("*.[jJ][pP]*[gG]"))
        for path in files[:PHOTOS]:
            with Image.open(path) as photo:
                yield np.asarray(ImageOps.exif_transpose(photo).convert("RGB"))


LAYOUTS = ("i420", "nv12", "nv21")
STANDARDS = tuple(frames.YUV_WEIGHTS)
FRAME_SIZES = [(1, 1), (2, 1), (1, 3), (5, 4), (48, 20), (31, 17), (70, 53)]


def frame_cases() -> Iterator[tuple[frames.Frame, Description]]:
    rng = np.random.default_rng(17)
    turned = product(STANDARDS, frames.ROTATIONS)
    others = product(LAYOUTS, turned, (0, 5))
    sizes, descriptions = cycle(FRAME_SIZES), cycle(DESCRIPTIONS)
    for layout, ((matrix, of_range), rotation), padding in others:
        planes = yuv_planes(rng, layout, next(sizes), padding)
        yield yuv_frame(planes, rotation, matrix, of_range), next(descriptions)
    for form, rotation, size in product(("rgb", "rgba", "bgra"), frames.ROTATIONS, FRAME_SIZES):
        data = packed(rng.integers(0, 256, (size[1], size[0], len(form))), rng.integers(0, 9))
        yield frames.Frame(form, *size, [data], rotation), next(descriptions)
    # Pixels farther apart than their bytes, and every value at every opacity.
    spread = packed(rng.integers(0, 256, (9, 14, 4)), 3, apart=6)
    yield frames.Frame("bgra", 14, 9, [spread], 90), DESCRIPTIONS[0]
    value, opacity = np.meshgrid(np.arange(256), np.arange(256))
    every = packed(np.stack([value, value[:, ::-1], 255 - value // 2, opacity], axis=2), 0)
    yield frames.Frame("rgba", 256, 256, [every]), DESCRIPTIONS[2]
    for matrix, of_range in STANDARDS:
        yield every_chroma(rng, matrix, of_range), DESCRIPTIONS[2]
    for layout, rotation in (("nv21", 90), ("i420", 270)):
        planes = yuv_planes(rng, layout, (640, 480), 32)
        yield yuv_frame(planes, rotation, "bt601", "full"), DESCRIPTIONS[0]
    # Much larger than the input, in numbers that no block divides.
    large = product(frames.ROTATIONS, ((331, 203), (266, 149), (133, 99)))
    for number, (rotation, size) in enumerate(large):
        planes = yuv_planes(rng, LAYOUTS[number % 3], size, number)
        yield yuv_frame(planes, rotation, *STANDARDS[number % 4]), next(descriptions)
        data = packed(rng.integers(0, 256, (size[1], size[0], 4)), number)
        yield frames.Frame("rgba", *size, [data], rotation), next(descriptions)


Planes = tuple[tuple[int, int], list[frames.Plane]]


def yuv_frame(sized: Planes, rotation: int, matrix: str, of_range: str) -> frames.Frame:
    (width, height), planes = sized
    return frames.Frame("yuv420", width, height, planes, rotation, matrix, of_range)


def yuv_planes(
    rng: np.random.Generator, layout: str, size: tuple[int, int], padding: int
) -> Planes:
    """Return planes of noise, whose rows have some bytes more than they need."""
    width, height = size
    luma = packed(rng.integers(0, 256, (height, width, 1)), padding)
    half = ((height + 1) // 2, (width + 1) // 2)
    if layout == "i420":
        chroma = [packed(rng.integers(0, 256, (*half, 1)), padding + n) for n in range(2)]
    else:
        both = packed(rng.integers(0, 256, (*half, 2)), padding)
        second = frames.Plane(both.data[1:], both.row_stride, 2)
        chroma = [both, second] if layout == "nv12" else [second, both]
    return size, [luma, *chroma]


def every_chroma(rng: np.random.Generator, matrix: str, of_range: str) -> frames.Frame:
    """Return a frame with each pair of U and V, under four Y each."""
    luma = packed(rng.integers(0, 256, (512, 512, 1)), 0)
    u, v = (packed(values[:, :, None], 0) for values in np.meshgrid(np.arange(256), np.arange(256)))
    return yuv_frame(((512, 512), [luma, u, v]), 0, matrix, of_range)


def packed(samples: np.ndarray, padding: int, apart: int = 0) -> frames.Plane:
    """Return ``(rows, columns, bytes)`` as a plane that begins behind some bytes of a buffer.

    Between its rows and pixels lie bytes that are no samples; behind the last one there are none.
    """
    rows, columns, count = samples.shape
    apart = apart or count
    row = columns * apart + padding
    begin = padding % 4
    spread = np.full((rows, row), 0xA5, np.uint8)
    for byte in range(count):
        spread[:, byte : byte + columns * apart : apart][:, :columns] = samples[:, :, byte]
    end = (rows - 1) * row + (columns - 1) * apart + count
    buffer = np.concatenate([np.full(begin, 0x5A, np.uint8), spread.reshape(-1)[:end]])
    return frames.Plane(buffer[begin:], int(row), apart)


LABELS = ["cat", "dog", "caf\u00e9", "\u732b", "", "bus", "\U0001f600"]


def answer_cases(rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    yield from classification_cases(rng)
    yield from detection_cases(rng)
    yield from embedding_cases(rng)
    yield from option_cases(np.random.default_rng(23))
    yield from layout_cases(np.random.default_rng(29))
    yield from mask_cases(np.random.default_rng(31))
    yield from decision_cases(np.random.default_rng(37))
    yield from ssd_cases(np.random.default_rng(41))
    yield from text_cases(np.random.default_rng(43))
    yield from keypoint_cases(np.random.default_rng(47))


def option_cases(rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    logits = rng.normal(0, 2, (1, 7)).astype(np.float32)
    for activation in ("none", "softmax", "sigmoid"):
        described = output(kind="classification", labels="labels.txt", activation=activation)
        for options in (
            {"top": 2},
            {"score": 0.1},
            {"score": 0.0, "top": 9, "most": 1, "iou": 0.5},
            {"allow": ["dog", "", LABELS[3]]},
            {"allow": [LABELS[6], "cat"], "score": 0.05, "top": 1},
            {"allow": []},
        ):
            yield described, logits, LABELS, None, None, options
        few = {"allow": LABELS[:2], "top": 7}
        yield described, logits, LABELS[:3], None, None, few
        # A score that is just reached, one that is no number, and a label that two classes have.
        edge = np.array([[0, np.nan, 0.5, -0.5, 0]], np.float32)
        yield described, edge, ["a", "b", "a", "c", "d"], None, None, {"score": 0.5}
        yield described, edge[:, 2:], ["a", "c", "a"], None, None, {"allow": ["a"]}
    letterbox = {"width": 200, "height": 120, "description": image(resize={"letterbox": 96})}
    for layout, scores in (("yolo", 3), ("yolov5", 4)):
        described = output(kind="detection", layout=layout, labels="labels.txt", most=50)
        rows = boxes(rng, 60, scores)[None]
        for options in (
            {"score": 0.6},
            {"score": 0, "iou": 1, "most": 70},
            {"iou": 0.0},
            {"most": 3, "top": 1},
            {"allow": ["dog"]},
            {"allow": ["cat", LABELS[2]], "score": 0.4, "iou": 0.2, "most": 9},
            {"allow": []},
        ):
            yield described, rows, LABELS[:3], letterbox, None, options
    zeros = np.zeros((1, 4), np.float32)
    nothing = {"score": 0.5, "allow": ["no label"]}
    yield output(kind="embedding", pooling="none"), zeros, [], None, None, nothing


def classification_cases(rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    for activation in ("none", "softmax", "sigmoid"):
        described = output(kind="classification", labels="labels.txt", activation=activation)
        yield described, rng.normal(0, 4, (1, 7)).astype(np.float32), LABELS
        yield described, rng.normal(0, 4, (1, 7)).astype(np.float16), LABELS[:3]
        # Far apart, and equal ones: the lower index comes first.
        far = np.array([[-900, 80, 80, -80, 0, 3e4, 80]], np.float32)
        yield described, far, []
    few = output(kind="classification", top=2)
    yield few, rng.normal(0, 1, (1, 1000, 1, 1)).astype(np.float32), []
    yield few, np.array([3.5], np.float64), ["only"]
    yield few, np.array(3.5, np.float32), ["only"]
    unknown = np.array([[np.nan, 1, np.nan, 3, 2]], np.float32)
    yield output(kind="classification", top=3), unknown, LABELS[:5]
    yield output(kind="classification", top=9), rng.integers(0, 256, (1, 7), np.uint8), LABELS


def detection_cases(rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    letterbox = {"width": 200, "height": 120, "description": image(resize={"letterbox": 96})}
    crop = image(resize={"short_side": 110, "crop": 96})
    cropped = {"width": 333, "height": 197, "description": crop}
    stretch = {"width": 50, "height": 70, "description": image(resize={"width": 96, "height": 96})}
    for described_image in (letterbox, cropped, stretch):
        for kind in ({"layout": "yolo"}, {"layout": "yolo", "iou": 0.1, "most": 7}):
            rows = boxes(rng, 60, 3)
            transposed = np.ascontiguousarray(rows.T[None])
            described = output(kind="detection", **kind)
            yield described, transposed, LABELS[:3], described_image
            yield described, rows[None], LABELS[:3], described_image
            yield described, transposed, [], described_image
    five = boxes(rng, 60, 4)
    described = output(kind="detection", layout="yolov5", score=0.1, iou=0.6)
    yield described, five[None], LABELS[:3], letterbox
    yield described, five[None].astype(np.float16), LABELS[:3], letterbox
    # Both axes have the size 4 + C; equal scores; no numbers; boxes without area; none at all.
    square = boxes(rng, 7, 3)
    yield output(kind="detection", layout="yolo"), square[None], LABELS[:3], letterbox
    odd = np.array(
        [
            [48, 48, 20, 20, 0.5, 0.5],
            [48, 48, 20, 20, 0.5, 0.25],
            [49, 48, 20, 20, 0.25, 0.5],
            [48, 48, 0, 0, 0.75, 0],
            [48, 48, 0, 0, 0.75, 0],
            [48, 48, -4, 9, 0.5, 0],
            [np.nan, 48, 9, 9, 1, 0],
            [48, 48, 9, 9, np.nan, 0.5],
            [48, 48, np.inf, 9, 1, 0],
            [20, 20, 5, 5, np.inf, 0],
        ],
        np.float32,
    )
    yield output(kind="detection", layout="yolo"), odd[None], LABELS[:2], letterbox
    yield output(kind="detection", layout="yolo", score=1), odd[None, :3], LABELS[:2], letterbox
    # Scores of just the least that is needed.
    yield output(kind="detection", layout="yolo", score=0.5), odd[None], LABELS[:2], letterbox
    for shape in ((1, 0, 7), (1, 7, 0)):
        for names in ([], LABELS[:3]):
            yield output(kind="detection", layout="yolo"), np.zeros(shape, "f4"), names, letterbox
    yield output(kind="detection", layout="yolov5"), np.zeros((1, 0, 7), "f4"), [], letterbox


def layout_cases(rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    letterbox = {"width": 200, "height": 120, "description": image(resize={"letterbox": 96})}
    wide = image(resize={"width": 100, "height": 70})
    stretch = {"width": 50, "height": 70, "description": wide}
    names = LABELS[:3]
    for picture_of, strides in ((letterbox, None), (letterbox, [16, 8]), (stretch, [7, 64, 101])):
        given = {} if strides is None else {"strides": strides}
        described = output(kind="detection", layout="yolox", score=0.3, **given)
        place = images.find_placement(1, 1, picture_of["description"]["resize"])
        cells = layouts.count_cells(described["strides"], place[-2:])
        offsets, logs = rng.normal(0.5, 1, (cells, 2)), rng.normal(1, 1, (cells, 2))
        scores = rng.uniform(0, 1, (cells, 4)) ** 0.3
        rows = np.hstack([offsets, logs, scores]).astype(np.float32)
        for labels in (names, []):
            yield described, rows[None], labels, picture_of
        yield described, rows[None].astype(np.float16), names, picture_of, None, {"most": 5}
        # No numbers, and sizes beyond all numbers.
        rows[0, 2], rows[1, 0], rows[2, 4], rows[3, 5] = 1e4, np.nan, np.inf, np.nan
        rows[4, 2:4] = -1e4
        yield {**described, "score": 0.0, "iou": 1.0}, rows[None], names, picture_of
    for picture_of in (letterbox, stretch):
        first = rng.uniform(-5, 80, (40, 2))
        corners = np.hstack([first, first + rng.uniform(0, 60, (40, 2))])
        found = np.column_stack([corners, rng.uniform(0, 1, 40), rng.integers(0, 3, 40)])
        rows = found.astype(np.float32)[None]
        rows[0, 3, :5] = rows[0, 4, :5] = rows[0, 9, :5]
        described = output(kind="detection", layout="end2end", score=0.3)
        for labels in (names, names[:2], []):
            yield described, rows, labels, picture_of
        yield described, rows.astype(np.float16), names, picture_of, None, {"allow": ["dog"]}
        yield {**described, "most": 4}, rows, names, picture_of, None, {"score": 0.8, "iou": 0}
    odd = np.array(
        [
            [10, 10, 20, 20, 0.9, -1],
            [10, 10, 20, 20, 0.9, 1.5],
            [10, 10, 20, 20, 0.9, np.nan],
            [10, 10, 20, 20, 0.9, np.inf],
            [10, 10, 20, 20, 0.9, 3e9],
            [10, 10, 20, 20, np.nan, 1],
            [10, 10, 20, 20, np.inf, 1],
            [10, np.nan, 20, 20, 0.9, 1],
            [10, 10, np.inf, 20, 0.9, 1],
            [10, 10, 20, 20, 0.5, -0.0],
            [20, 20, 10, 10, 0.5, 2],
            [10, 10, 10, 10, 0.5, 80],
        ],
        np.float32,
    )
    for labels in (names, []):
        yield described, odd[None], labels, letterbox
        yield {**described, "score": 0.0}, odd[None], labels, letterbox
    yield described, np.zeros((1, 0, 6), np.float32), names, letterbox


def ssd(**how: object) -> Description:
    return output(kind="detection", layout="ssd", scores="scores", **how)


def ssd_cases(rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    letterbox = {"width": 200, "height": 120, "description": image(resize={"letterbox": 96})}
    crop = image(resize={"short_side": 110, "crop": 96})
    cropped = {"width": 333, "height": 197, "description": crop}
    wide = image(resize={"width": 100, "height": 70})
    stretch = {"width": 50, "height": 70, "description": wide}
    pictures = cycle([letterbox, cropped, stretch])
    names = LABELS[:3]
    # Boxes in all forms, with and without a background.
    for form, normalized, background in product(
        ("corners", "corners_yx", "centre"), (True, False), (False, True)
    ):
        rows = boxes(rng, 60, 3 + background)
        values = rows[:, :4] / np.float32(96 if normalized else 1)
        if form != "centre":
            half = values[:, 2:] / 2
            values = np.hstack([values[:, :2] - half, values[:, :2] + half])
        described = ssd(box=form, normalized=normalized, background=background)
        given, picture_of = [values[None], rows[None, :, 4:]], next(pictures)
        yield described, given, names, picture_of
        options = {"allow": ["dog", LABELS[2]], "score": 0.6, "iou": 0.2, "most": 5}
        yield described, given, names, picture_of, None, options
        yield described, [each.astype(np.float16) for each in given], [], picture_of
    # Activations, over classes with the background; logits so large that scores are equal.
    near = boxes(rng, 40, 4)
    near[:, :4] /= 96
    for activation, background in product(("softmax", "sigmoid"), (False, True)):
        described = ssd(box="centre", activation=activation, background=background)
        labels = LABELS[: 4 - background]
        for spread in (3, 300):
            logits = rng.normal(0, spread, (1, 40, 4)).astype(np.float32)
            logits[0, 3] = logits[0, 9] = logits[0, 5]
            logits[0, 7, 1:3] = 80, 90
            yield described, [near[None, :, :4], logits], labels, letterbox
            yield described, [near[None, :, :4], logits], [], stretch, None, {"score": 0, "iou": 1}
    # Priors.
    centres = rng.uniform(0, 1, (50, 2))
    priors = np.hstack([centres, rng.uniform(0.05, 0.4, (50, 2))])
    lines = [",".join(map(repr, row)) for row in priors.tolist()]
    text = "\n".join(lines) + "\n"
    odd_text = "\ufeff" + "\r\n".join(line.replace(",", " , ") for line in lines)
    offsets = rng.normal(0, 1, (1, 50, 4)).astype(np.float32)
    scores = rng.uniform(0, 1, (1, 50, 3)).astype(np.float32)
    for how, written in (
        ({}, text),
        ({"variances": [0.25, -0.5], "background": True}, odd_text),
        ({"activation": "softmax", "score": 0.4, "iou": 0.3}, text),
    ):
        described = ssd(priors="priors.txt", **how)
        labels = names[: 3 - described["background"]]
        for picture_of in (letterbox, cropped, stretch):
            yield described, [offsets, scores], labels, picture_of, None, None, written
    far = offsets.copy()
    far[0, 0, 2], far[0, 1, 0], far[0, 2, 1], far[0, 3, 2:] = 1e5, np.nan, np.inf, -1e5
    far[0, 4, :2] = 3e38
    options = {"score": 0, "iou": 1}
    described = ssd(priors="priors.txt")
    yield described, [far, scores], names, letterbox, None, options, text
    # Classes as numbers, of floats and of integers, with and without a background.
    top_first = rng.uniform(-0.1, 1.1, (1, 40, 4)).astype(np.float32)
    one = rng.uniform(0, 1, (1, 40)).astype(np.float32)
    kinds = rng.integers(0, 4, (1, 40))
    for background, activation in product((False, True), ("none", "sigmoid")):
        described = ssd(
            classes="kinds", box="corners_yx", background=background, activation=activation
        )
        for labels in (names, names[:2], []):
            yield described, [top_first, one, kinds.astype(np.float32)], labels, letterbox
        yield described, [top_first, one, kinds], names, stretch, None, {"allow": ["cat"]}
        yield described, [top_first, one, kinds.astype(np.int32)], [], cropped, None, {"iou": 1}
    odd_kinds = np.array([[-1, 1.5, np.nan, np.inf, 3e9, 1, -0.0, 2, 80, 1]], np.float32)
    odd_scores = np.array([[0.9, 0.9, 0.9, 0.9, 0.9, np.nan, 0.5, 0.9, 0.4, np.inf]], np.float32)
    for labels, background in product((names, []), (False, True)):
        described = ssd(classes="kinds", background=background, score=0.25)
        given = [top_first[:, :10], odd_scores, odd_kinds]
        yield described, given, labels, letterbox
        yield described, given, labels, letterbox, None, {"score": 0.5}
    # Equal scores, the least score, no numbers, boxes without area and upside down.
    odd_boxes = np.array(
        [
            [0.1, 0.1, 0.5, 0.5],
            [0.1, 0.1, 0.5, 0.5],
            [0.1, 0.1, 0.5, 0.45],
            [0.2, 0.2, 0.2, 0.2],
            [0.2, 0.2, 0.2, 0.2],
            [0.9, 0.9, 0.1, 0.1],
            [np.nan, 0, 1, 1],
            [0, 0, np.inf, 1],
            [0.3, 0.3, 0.6, 0.6],
            [0.3, 0.3, 0.6, 0.6],
            [-4, -4, 4, 4],
        ],
        np.float32,
    )[None]
    odd_values = np.array(
        [
            [0.5, 0.5, 0],
            [0.5, 0.25, 0.5],
            [0.25, 0.75, 0.5],
            [0.75, 0, -0.0],
            [0.75, 0, 0],
            [0.5, 0, 0],
            [1, 1, 1],
            [1, 1, 1],
            [np.nan, np.nan, np.nan],
            [np.nan, 0.5, -np.inf],
            [np.inf, 0.25, 0.1],
        ],
        np.float32,
    )[None]
    for activation in ("none", "softmax", "sigmoid"):
        for background in (False, True):
            described = ssd(activation=activation, background=background)
            labels = names[: 3 - background]
            yield {**described, "score": 0.5}, [odd_boxes, odd_values], labels, letterbox
            yield {**described, "score": 0.0, "iou": 1.0}, [odd_boxes, odd_values], [], letterbox
    # None at all.
    for activation in ("none", "softmax"):
        none = [np.zeros((1, 0, 4), np.float32), np.zeros((1, 0, 3), np.float32)]
        yield ssd(activation=activation), none, names, letterbox
    none = [np.zeros((1, 0, 4), np.float32), *[np.zeros((1, 0), np.float32)] * 2]
    yield ssd(classes="kinds"), none, names, letterbox
    none = [np.zeros((1, 0, 4), np.float32), np.zeros((1, 0, 3), np.float32)]
    yield ssd(priors="priors.txt"), none, names, letterbox, None, None, ""


def keypoint_cases(rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    letterbox = {"width": 200, "height": 120, "description": image(resize={"letterbox": 96})}
    crop = image(resize={"short_side": 110, "crop": 96})
    cropped = {"width": 333, "height": 197, "description": crop}
    stretch = {"width": 50, "height": 70, "description": image(resize={"width": 96, "height": 96})}
    names = LABELS[:2]
    for (number, values), picture_of in product(
        ((5, 3), (4, 2), (1, 3)), (letterbox, cropped, stretch)
    ):
        how = {"keypoints": number, "keypoint_values": values}
        scored, points = boxes(rng, 40, 2), rng.uniform(-9, 105, (40, number * values))
        rows = np.hstack([scored, points]).astype(np.float32)
        described = output(kind="detection", layout="yolo", **how)
        yield described, rows[None], names, picture_of
        yield described, np.ascontiguousarray(rows.T[None]), names, picture_of
        yield described, rows.T[None].astype(np.float16), [], picture_of, None, {"most": 4}
        options = {"allow": ["dog"], "score": 0.4, "iou": 0.2}
        yield described, rows[None], names, picture_of, None, options
        yield described, rows[:, [0, 1, 2, 3, 4, *range(6, rows.shape[1])]][None], [], picture_of
        # Keypoints that are no numbers, and rows where the model found nothing.
        odd = rows.copy()
        odd[0, 6], odd[1, -1], odd[2, 7] = np.nan, np.inf, -np.inf
        yield {**described, "score": 0.0, "iou": 1.0}, odd[None], names, picture_of
        ended = np.column_stack([rows[:, :5], rng.integers(-1, 2, 40), rows[:, 6:]])
        described = output(kind="detection", layout="end2end", **how)
        yield described, ended.astype(np.float32)[None], names, picture_of
        yield described, ended.astype(np.float32)[None], names[:1], picture_of
        odd[:, 5] = 0
        yield {**described, "score": 0.0}, odd[None], [], picture_of
    for shape in ((1, 0, 21), (1, 21, 0)):
        described = output(kind="detection", layout="yolo", keypoints=5)
        yield described, np.zeros(shape, np.float32), LABELS[:2], letterbox
        yield described, np.zeros(shape, np.float32), [], letterbox


def mask_cases(rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    pictures = [
        {"width": 50, "height": 31, "description": image(resize={"letterbox": 24})},
        {"width": 9, "height": 40, "description": image(resize={"letterbox": 24})},
        {"width": 61, "height": 37, "description": image(resize={"short_side": 30, "crop": 24})},
        {"width": 19, "height": 33, "description": image(resize={"width": 24, "height": 16})},
        {"width": 1, "height": 1, "description": image(resize={"width": 24, "height": 16})},
    ]
    first, last = output(kind="mask"), output(kind="mask", axis=-1, labels="labels.txt")
    for shown in pictures:
        for height, width in ((24, 24), (6, 12), (31, 50), (1, 1)):
            scores = rng.normal(0, 1, (1, 3, height, width)).astype(np.float32)
            yield first, scores, [], shown
            by_pixel = np.ascontiguousarray(scores.transpose(0, 2, 3, 1)).astype(np.float16)
            yield last, by_pixel, LABELS[:3], shown
        single = rng.uniform(0, 1, (8, 8)).astype(np.float32)
        named = rng.integers(0, 255, (8, 8))
        for shape, axis in (((1, 8, 8), 1), ((1, 1, 8, 8), 1), ((1, 8, 8, 1), -1)):
            described = output(kind="mask", axis=axis, threshold=0.3)
            yield described, single.reshape(shape), [], shown
            yield described, named.reshape(shape).astype(np.int64), [], shown
        yield last, named.astype(np.uint8)[None], [], shown
        yield first, named.astype(np.int32)[None, None], LABELS, shown
    # Equal scores, no numbers, a value at the threshold, and many classes.
    odd = np.zeros((1, 3, 2, 4), np.float32)
    odd[0, 1, 0], odd[0, 2, 0], odd[0, 0, 1] = 1, 1, np.nan
    odd[0, :, 1, 1], odd[0, :, 1, 2], odd[0, 2, 1, 3] = np.nan, -np.inf, np.inf
    yield first, odd, [], pictures[0]
    edge = np.array([[[0.5, 0.3, np.nan, np.inf]]], np.float32)
    yield first, edge, [], pictures[0]
    yield {**first, "threshold": 0.3}, edge, [], pictures[0]
    # 0.7 in 32 bits is a little less than 0.7.
    less = np.array([[[0.7, 0.70001]]], np.float32)
    yield {**first, "threshold": 0.7}, less, [], pictures[0]
    yield {**first, "threshold": 0.7}, less.astype(np.float64), [], pictures[0]
    # Pixels whose centres lie on the edges of the input.
    on_edges = image(resize={"short_side": 30, "crop": 24})
    named = rng.integers(0, 9, (1, 24, 24)).astype(np.uint8)
    yield first, named, [], {"width": 15, "height": 15, "description": on_edges}
    yield first, rng.normal(0, 1, (1, 255, 5, 5)).astype(np.float32), [], pictures[3]


def decision_cases(rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    for activation in ("none", "sigmoid"):
        described = output(kind="probability", activation=activation, threshold=0.75)
        yield described, rng.normal(0.5, 2, (1, 9)).astype(np.float32), []
        yield described, rng.normal(0.5, 2, (3, 1, 2)).astype(np.float16), []
        yield described, np.array([[0.75, 900, -900, 0, -0.0]], np.float32), []
        yield described, np.array(0.8, np.float64), []
        yield described, np.zeros((1, 0), np.float32), []


def text_cases(rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    # Symbols of several letters, none, a space, marks that join, and letters beyond 16 bits.
    alphabet = ["a", "b", "\u0301", "\U0001f600", " ", "", "ab", "\u732b"]
    for axis, blank, activation in product((-1, 1), (0, -1, 3, 8), ("none", "softmax")):
        described = output(
            kind="text", labels="alphabet.txt", axis=axis, blank=blank, activation=activation
        )
        steps = np.repeat(rng.normal(0, 3, (20, 9)), rng.integers(1, 4, 20), axis=0)
        steps[rng.random(len(steps)) < 0.3, blank] = 20
        steps = steps.astype(np.float32)
        whole = np.ascontiguousarray(steps.T) if axis == 1 else steps
        yield described, whole[None], alphabet
        yield described, whole[None].astype(np.float16), alphabet
        if axis == -1:
            yield described, whole[:, None].astype(np.float64), alphabet
            yield described, np.zeros((0, 1, 9), np.float32), alphabet
            yield described, whole[None, :1], alphabet, None, None, {"score": 1, "top": 1}
        # The blank alone, twice the same symbol, and none.
        yield described, np.zeros((1, 9, 9), np.float32), alphabet
        twice = np.full((5, 9), -4, np.float32)
        twice[[0, 1, 3, 4], 2], twice[2, blank] = 2, 2
        yield described, (twice.T if axis == 1 else twice)[None].copy(), alphabet
        none = np.zeros((1, 9, 0) if axis == 1 else (1, 0, 9), np.float32)
        yield described, none, alphabet
    # Equal values, no numbers, and minus infinity.
    odd = np.full((9, 4), -np.inf, np.float32)
    odd[0, 1:3], odd[1, 2:], odd[2, 1], odd[2, 2] = 1, 1, np.nan, 0.5
    odd[4], odd[5, :2], odd[6, 3], odd[8] = np.nan, [np.nan, -5], 0.25, -0.0
    for blank in range(-1, 4):
        described = output(kind="text", labels="alphabet.txt", blank=blank)
        yield described, odd[None], ["x", "y", "z"]


def boxes(rng: np.random.Generator, number: int, scores: int) -> np.ndarray:
    """Return rows of some clusters of boxes, in and around a 96 by 96 input, with their scores."""
    centres = rng.uniform(-5, 101, (8, 2))[rng.integers(0, 8, number)]
    centres = centres + rng.normal(0, 3, (number, 2))
    sizes = rng.uniform(5, 60, (number, 2))
    return np.hstack([centres, sizes, rng.uniform(0, 1, (number, scores))]).astype(np.float32)


def embedding_cases(rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    hidden = rng.normal(0, 1, (3, 6, 8)).astype(np.float32)
    mask = (np.arange(6) < np.array([[6], [2], [0]])).astype(np.int64)
    for normalize in (False, True):
        for pooling in ("mean", "max"):
            described = output(kind="embedding", pooling=pooling, normalize=normalize)
            yield described, hidden, []
            described = output(kind="embedding", pooling=pooling, mask="m", normalize=normalize)
            yield described, hidden, [], None, mask
            yield described, hidden.astype(np.float16), [], None, mask.astype(np.int32)
        yield output(kind="embedding", pooling="cls", normalize=normalize), hidden, []
        described = output(kind="embedding", pooling="none", normalize=normalize)
        yield described, hidden[:, 0], []
        yield described, hidden, []
    for shape in ((0, 4, 3), (2, 0, 3)):
        yield output(kind="embedding", pooling="none"), np.zeros(shape, np.float32), []
        yield output(kind="embedding", pooling="mean"), np.zeros(shape, np.float32), []
    zeros = np.zeros((1, 4), np.float32)
    yield output(kind="embedding", pooling="none", normalize=True), zeros, []


WORDS = [
    word
    for line in (
        "[PAD] [UNK] [CLS] [SEP] [MASK] the quick brown fox jump ##ed",
        "un ##aff ##able ##s ##ing a ##b b cafe caf\u00e9 \u4e2d \u6587 \u3042 ##\u3044",
        "\u03c3 ##\u03c3 ##\u03c2 \u0441\u043b\u043e\u0432\u043e , . ! ? ' \" - ( ) $ # @ \u00bf",
        "\u2014 \u20ac Hello World hello world 1 ##2 ##3 i\u0307 i stra\u00dfe",
        "\u1112\u1161\u11ab \ud55c \U0001f600 z\u0308 \u212b \ufb01 new ##york",
    )
    for word in line.split()
]
TEXTS = [
    "",
    " ",
    "the quick brown fox",
    "The QUICK, brown fox jumps!? (unaffable)",
    "Hello World hello world",
    "caf\u00e9 CAFE\u0301 Cafe",
    "\u4e2d\u6587\u3042\u3044 \u4e2d a\u6587b",
    "\u03a3\u03a3\u03a3 \u03c3\u03c2 \u0421\u041b\u041e\u0412\u041e",
    "a\tb\na\rb\u00a0a\u2003b\u3000a\u2028b\u202fa\u0085b\u000ba\u001cb",
    "a\u0000b a\ufffdb a\u00adb \u200ba\u200db a\ue000b a\u0301b a\u20ddb",
    "$1.23 #12 @ab \u00bfque? \u2014 \u20ac \u201cquoted\u201d don't `a` ^b ~a |b <a=b+a>",
    "[CLS] the [MASK] fox[SEP]un[MASK]able [mask] [UNK]",
    "newyork new york NewYork",
    "\u0130 I\u0307 stra\u00dfe STRASSE \u1e9e",
    "\ud55c \u1112\u1161\u11ab \U0001f600\U0001f600 \u212b \ufb01 z\u0308",
    "x" * 12 + " " + "a" + "b" * 30 + " " + "\U0001f600" * 11,
    "the quick brown fox jumped " * 12,
    "unaffableunaffables",
]  # fmt: skip


LETTERS = [
    *"the quick brown fox un able aff   ab newyork [MASK] 123 a b the",
    *map(chr, range(0x20, 0x180)),
    *"\u0301\u0308\u0610\u0591\u20dd\u4e2d\u6587\u3042\u3044\u03c3\u03a3\u03c2\u0130\u1e9e\ud55c\u1112\u1161",
    *"\u00ad\u200b\u200d\ufeff\u2028\u3000\u1680\u180e\u2014\u201c\u20ac\ufffd\ue000\uf900\u001c\t\n\r\u000b",
    *"\U0001f600\U0002b820\U0002b920\U0002a700\U0002f800",
]


def drawn_texts() -> list[str]:
    """Return texts of letters that tokenizers disagree about when one of them is careless."""
    rng = np.random.default_rng(5)
    return [
        "".join(LETTERS[n] for n in rng.integers(0, len(LETTERS), size))
        for size in rng.integers(1, 40, 60)
    ]


def tokenizer(**changes: object) -> Description:
    """Return a small tokenizer of BERT's kind."""
    special = WORDS[:5]
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": n, "content": word, **flags, "normalized": False, "special": True}
            for n, word in enumerate(special)
        ],
        "normalizer": normalizer(),
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [piece("[CLS]"), {"Sequence": {"id": "A", "type_id": 0}}, piece("[SEP]")],
            "pair": [],
            "special_tokens": {
                word: {"id": word, "ids": [special.index(word)], "tokens": [word]}
                for word in ("[CLS]", "[SEP]")
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 32,
            "vocab": {word: n for n, word in zip(count(), dict.fromkeys(WORDS), strict=False)},
        },
        **changes,
    }


def piece(word: str, kind: int = 0) -> Description:
    return {"SpecialToken": {"id": word, "type_id": kind}}


def normalizer(**changes: object) -> Description:
    rules = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
    return {"type": "BertNormalizer", **rules, "lowercase": True, **changes}


def wordpiece_cases() -> Iterator[tuple[Description, int, bool]]:
    yield tokenizer(), 24, True
    yield tokenizer(), 24, False
    yield tokenizer(), 2, True
    yield tokenizer(normalizer=normalizer(lowercase=False)), 64, True
    yield tokenizer(normalizer=normalizer(strip_accents=False)), 64, False
    kept = normalizer(clean_text=False, handle_chinese_chars=False)
    yield tokenizer(normalizer=kept), 64, False
    short = {**tokenizer()["model"], "max_input_chars_per_word": 5, "unk_token": "[MASK]"}
    yield tokenizer(model=short), 40, False
    bert = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    padding = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 4,
        "pad_type_id": 1,
        "pad_token": "[MASK]",
    }
    yield tokenizer(post_processor=bert, padding=padding), 16, True
    added = tokenizer()["added_tokens"]
    size = len(tokenizer()["model"]["vocab"])
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "special": False}
    added += [
        {"id": size, "content": "NewYork", **flags, "normalized": True},
        {"id": size + 1, "content": "New", **flags, "normalized": True},
        {"id": size + 2, "content": "fox[", **flags, "normalized": False},
    ]
    types = tokenizer()["post_processor"]
    types["single"] = [piece("[CLS]"), {"Sequence": {"id": "A", "type_id": 1}}, piece("[SEP]", 1)]
    yield tokenizer(added_tokens=added, post_processor=types), 40, True


if __name__ == "__main__":
    main()
