"""What files beside a model say about its pictures and classes: those of the checkpoint it came of.

Sources of the formats: transformers' image processors (``image_processing_*.py``: resize, centre
crop, rescale, normalize, in this order); timm's ``config.json`` on the Hub and its
``transforms_factory.py`` (the short side becomes ``floor(size / crop_pct)``); Keras' archives
(``saving_lib.py``: ``config.json`` in a zip) and ``preprocess_input`` of each model in
``keras.applications``.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from edgepack.preprocessing.alternatives import CAFFE_MEAN, RGB_MEAN, RGB_STD
from edgepack.project.inputs import Filter, ImageInput, Letterbox, ShortSideCrop, Stretch

PROCESSOR, CONFIG = "preprocessor_config.json", "config.json"
_LEVEL = 0.00392157
_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
"""Pillow's numbers, which transformers writes as ``resample``."""
_KIND, _OLDER_KIND, _STRETCHED = "image_processor_type", "feature_extractor_type", 384
_OWN_WAY = ("DeiT", "LeViT", "Levit")
"""Processors of transformers that stretch or enlarge before they cut, whatever their keys say."""
_LARGEST = 1 << 26
"""The bytes of the largest file that is read."""

Resize = Letterbox | ShortSideCrop | Stretch


@dataclass(frozen=True)
class Told:
    """What a checkpoint's files say."""

    image: ImageInput | None = None
    """How pictures become the input; None where no file says it."""
    why: str = ""
    """Which file says it, and what of it was assumed."""
    filter: str = ""
    """What pictures were resized with for the model, by Pillow's name; empty where none is told.
    The image's description has it where edgepack resizes so, too."""
    classes: tuple[str, ...] = ()
    """The names of classes, by index; empty where no file has them."""
    refused: tuple[str, ...] = field(default=())
    """Files that were not taken, and why, a sentence without its end each."""


@dataclass(frozen=True)
class _Read:
    """What one file says of pictures."""

    changes: Mapping[str, Any]
    """Of an image's description, without ``resize``."""
    resize: Resize | None
    filter: str = ""
    assumed: str = ""


def read_checkpoint(model: Path, usual: ImageInput) -> Told:
    """Return what files beside a model say; in a folder ``onnx``, also those above it.

    A file that cannot be read, or that says what edgepack does not do, is named in ``refused``.

    Args:
        model: The ``.onnx`` file.
        usual: The description to change: its layout and the size of the input are the model's.
    """
    folder = model.resolve().parent
    folders = [folder, *([folder.parent] if folder.name == "onnx" else [])]
    refused: list[str] = []
    told = Told()
    for path, read in _list_files(folders):
        try:
            found = read(path, _find_side(usual))
            if found is not None and told.image is None:
                told = _apply(found, usual, path.name)
        except (
            OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile
        ) as error:  # fmt: skip
            refused.append(f"{path.name} was not taken: {_explain(error)}")
    classes = next((names for each in folders if (names := _read_classes(each / CONFIG))), ())
    return Told(told.image, told.why, told.filter, classes, tuple(refused))


def _explain(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return error.errors()[0]["msg"].partition(" | ")[0].removeprefix("Value error, ")
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _list_files(folders: list[Path]) -> Iterator[tuple[Path, Any]]:
    """Yield files that are there, each with what reads it, the surest first."""
    for folder in folders:
        for name, read in ((PROCESSOR, _read_processor), (CONFIG, _read_timm)):
            if (folder / name).is_file():
                yield folder / name, read
        yield from ((path, _read_keras) for path in sorted(folder.glob("*.keras")))


def _find_side(image: ImageInput) -> tuple[int, int]:
    """Return height and width of the input."""
    match image.resize:
        case Letterbox():
            return image.resize.letterbox, image.resize.letterbox
        case ShortSideCrop():
            return image.resize.crop, image.resize.crop
        case Stretch():
            return image.resize.height, image.resize.width


def _apply(found: _Read, usual: ImageInput, name: str) -> Told:
    changes = dict(found.changes)
    if usual.order == "GRAY":
        changes.pop("order", None)
        changes |= {key: changes[key][:1] for key in ("mean", "std") if changes.get(key)}
    resize = found.resize or usual.resize
    name_of_pillow = f"pillow-{found.filter}"
    if name_of_pillow in get_args(Filter):
        resize = resize.model_copy(update={"filter": name_of_pillow})
    changes["resize"] = resize
    image = ImageInput.model_validate({**usual.model_dump(), **_dump(changes)})
    return Told(image, "; ".join(filter(None, (name, found.assumed))), found.filter)


def _dump(changes: Mapping[str, Any]) -> dict[str, Any]:
    resize = changes.get("resize")
    return {**changes, **({"resize": resize.model_dump()} if resize is not None else {})}


def _read_json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _LARGEST:
        raise ValueError(f"it has {path.stat().st_size} bytes")
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise TypeError("it holds no JSON object")
    return found


def _read_processor(path: Path, size: tuple[int, int]) -> _Read | None:
    """Read transformers' ``preprocessor_config.json``; None where it is of no pictures."""
    given = _read_json(path)
    if "image_mean" not in given and "do_rescale" not in given and "size" not in given:
        return None
    # Older files have no do_rescale, and were made when it was always done.
    rescales = given.get("do_rescale", True)
    scale = float(given.get("rescale_factor", 1 / 255)) if rescales else 1.0
    normalizes = given.get("do_normalize", "image_mean" in given)
    if given.get("rescale_offset") or given.get("include_top"):
        raise ValueError(
            "it rescales a second time (rescale_offset, include_top), which edgepack does not read"
        )
    changes = {
        "order": "BGR" if given.get("do_flip_channel_order") else "RGB",
        "scale": _LEVEL if math.isclose(scale, 1 / 255, rel_tol=1e-4) else scale,
        "mean": _list_numbers(given.get("image_mean")) if normalizes else [],
        "std": _list_numbers(given.get("image_std")) if normalizes else [],
    }
    resize, assumed = _read_size(given, size)
    return _Read(changes, resize, _FILTERS.get(given.get("resample", -1), ""), assumed)


def _list_numbers(given: object) -> list[float]:
    if given is None:
        return []
    values: list[Any] = given if isinstance(given, list) else [given] * 3
    return [float(value) for value in values]


def _read_size(given: Mapping[str, Any], size: tuple[int, int]) -> tuple[Resize | None, str]:
    """Return how pictures are resized, and what was assumed; None where they are otherwise."""
    kind = str(given.get(_KIND) or given.get(_OLDER_KIND) or "")
    if not given.get("do_resize", True):
        return None, "it resizes nothing: the size is a guess"
    if given.get("keep_aspect_ratio") or kind.startswith(_OWN_WAY):
        return None, f"{kind or 'it'} resizes in its own way: resize is a guess"
    crop = given.get("crop_size")
    crops = given.get("do_center_crop", crop is not None)
    side = _find_one_side(crop) if crops else None
    found = _find_resize(_name_sides(given.get("size")), side, _find_share(given, kind))
    if found is None:
        told = json.dumps(given.get("size"))
        return None, f"its size is {told}, which edgepack does not do: resize is a guess"
    if isinstance(found, ShortSideCrop):
        return _fit(found, (found.crop, found.crop), size)
    return _fit(found, (found.height, found.width), size)


def _name_sides(wanted: object) -> object:
    """Return a size with its sides by name, where it is a list of two that are equal."""
    if isinstance(wanted, list) and len(wanted) == 2 and wanted[0] == wanted[1]:
        return {"height": wanted[0], "width": wanted[1]}
    return wanted


def _find_share(given: Mapping[str, Any], kind: str) -> float | None:
    """Return the share of a picture's short side that ConvNext's processors cut out, else None."""
    return float(given.get("crop_pct") or 224 / 256) if "ConvNext" in kind else None


def _find_resize(
    wanted: object, side: int | None, share: float | None
) -> ShortSideCrop | Stretch | None:
    """Return how pictures are resized; None where that is neither a stretch nor a centre crop.

    Args:
        wanted: The size: a number, or sides by name.
        side: Of the square that is cut out; None where nothing is.
        share: Of ConvNext's: they are cut below 384, and stretched from there on.
    """
    sides = wanted if isinstance(wanted, dict) else {}
    short = wanted if isinstance(wanted, int) else sides.get("shortest_edge")
    if "height" in sides and "width" in sides:
        height, width = int(sides["height"]), int(sides["width"])
        # Stretched and then cut is neither.
        stretched = side is None or (height, width) == (side, side)
        return Stretch(width=width, height=height) if stretched else None
    if not isinstance(short, int):
        return None
    if side is None and share is not None and short < _STRETCHED:
        return ShortSideCrop(short_side=math.floor(short / share), crop=short)
    if side is None and (share is not None or isinstance(wanted, int)):
        return Stretch(width=short, height=short)
    if side is not None and side <= short:
        return ShortSideCrop(short_side=short, crop=side)
    return None


def _find_one_side(crop: object) -> int | None:
    if isinstance(crop, int):
        return crop
    sides = {crop.get("height"), crop.get("width")} if isinstance(crop, dict) else set()
    (side,) = sides if len(sides) == 1 else (None,)
    return side if isinstance(side, int) else None


def _fit(resize: Resize, made: tuple[int, int], size: tuple[int, int]) -> tuple[Resize | None, str]:
    """Return how pictures are resized if that makes the model's size, else why it does not."""
    if made == size:
        return resize, ""
    return None, (
        f"it makes {made[1]} x {made[0]}, and the model takes {size[1]} x {size[0]}: resize is a"
        " guess"
    )


def _read_timm(path: Path, size: tuple[int, int]) -> _Read | None:
    """Read what timm writes as ``config.json``; None of any other."""
    given = _read_json(path).get("pretrained_cfg")
    if not isinstance(given, dict) or "mean" not in given:
        return None
    changes = {
        "order": "RGB",
        "scale": _LEVEL,
        "mean": _list_numbers(given["mean"]),
        "std": _list_numbers(given.get("std")),
    }
    tested = given.get("test_input_size")
    is_tested = tested is not None and tuple(tested[1:]) == size
    shares = [given["test_crop_pct"]] if is_tested and given.get("test_crop_pct") else []
    share = float([*shares, given.get("crop_pct") or 0.875][0])
    mode, assumed = given.get("crop_mode") or "center", ""
    resize: Resize | None = None
    if mode == "center" and size[0] == size[1]:
        resize = ShortSideCrop(short_side=math.floor(size[0] / share), crop=size[0])
    elif mode == "squash" and share == 1:
        resize = Stretch(width=size[1], height=size[0])
    else:
        assumed = f"its crop_mode is {mode} with {share:g}: resize is a guess"
    trained = tuple(given.get("input_size", (3, *size))[1:])
    if not is_tested and trained != size:
        at = f"it was trained at {trained[1]} x {trained[0]}"
        assumed = "; ".join(filter(None, (at, assumed)))
    return _Read(changes, resize, str(given.get("interpolation", "")), assumed)


_KERAS: Mapping[str, Mapping[str, Any]] = {
    "tf": {"order": "RGB", "scale": 2 * _LEVEL, "mean": [1.0] * 3, "std": []},
    "torch": {"order": "RGB", "scale": _LEVEL, "mean": RGB_MEAN, "std": RGB_STD},
    "caffe": {"order": "BGR", "scale": 1.0, "mean": CAFFE_MEAN[::-1], "std": []},
    "none": {"order": "RGB", "scale": 1.0, "mean": [], "std": []},
}
"""What ``preprocess_input`` does, by its mode."""
_KERAS_NAMES: tuple[tuple[str, str], ...] = (
    ("efficientnet", "none"), ("convnext", "none"), ("mobilenetv3", "none"),
    ("densenet", "torch"), ("vgg", "caffe"),
    ("mobilenet", "tf"), ("inception", "tf"), ("xception", "tf"), ("nasnet", "tf"),
)  # fmt: skip
"""The mode of models whose name begins so; those of ResNet depend on their version."""


def _read_keras(path: Path, size: tuple[int, int]) -> _Read | None:
    """Read an archive of Keras: layers that scale, or the name that ``keras.applications`` gives.

    None where neither is there. How pictures were resized is in no such file.
    """
    del size
    with zipfile.ZipFile(path) as archive:
        if archive.getinfo(CONFIG).file_size > _LARGEST:
            raise ValueError(f"its {CONFIG} has {archive.getinfo(CONFIG).file_size} bytes")
        given = json.loads(archive.read(CONFIG))["config"]
    name = str(given.get("name", "")).lower()
    layers = {str(each.get("class_name")) for each in given.get("layers", [])}
    if inside := sorted(layers & {"Rescaling", "Normalization"}):
        return _Read(_KERAS["none"], None, "", f"its layer {inside[0]} takes pixels of 0 to 255")
    mode = next((mode for start, mode in _KERAS_NAMES if name.startswith(start)), "")
    if name.startswith("resnet"):
        mode = "tf" if "v2" in name else "caffe"
    if not mode:
        return None
    told = f"it is named {given.get('name')}, as keras.applications names what takes mode {mode!r}"
    return _Read(_KERAS[mode], None, "", told)


def _read_classes(path: Path) -> tuple[str, ...]:
    """Return the class names in a ``config.json``: transformers' ``id2label``, timm's names."""
    try:
        given = _read_json(path)
    except (OSError, ValueError, TypeError):
        return ()
    numbered, names = given.get("id2label"), given.get("label_names")
    if isinstance(numbered, dict) and set(numbered) == {str(n) for n in range(len(numbered))}:
        names = [numbered[str(n)] for n in range(len(numbered))]
    # LABEL_0 is what transformers writes where nobody gave a name.
    if not isinstance(names, list) or any(str(name).startswith("LABEL_") for name in names):
        return ()
    return tuple(" ".join(str(name).split()) for name in names)
