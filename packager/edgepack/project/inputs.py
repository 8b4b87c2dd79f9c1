"""What a project file says about the model's inputs: how images and texts become tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from edgepack.base.schema import Finite, Positive, StrictModel


class Documented(StrictModel):
    """What people read of an input or output.

    Written only where it is given, so that the bytes of other manifests stay what they were.
    """

    name: Annotated[str | None, Field(min_length=1, exclude_if=lambda given: given is None)] = None
    """Its name in the APIs of apps, where the model's own says nothing, such as ``output0``."""
    description: Annotated[
        str | None, Field(min_length=1, exclude_if=lambda given: given is None)
    ] = None
    """For the comments of these APIs, and the bundle's README."""

    def without_words(self) -> Self:
        """Return it as if it had neither: no step depends on what people read."""
        return self.model_copy(update={"name": None, "description": None})


Filter = Literal[
    "pillow-bilinear",
    "pillow-bicubic",
    "pillow-nearest",
    "cv2-linear",
    "cv2-cubic",
    "cv2-area",
    "cv2-nearest",
    "torchvision-bilinear",
    "torchvision-bicubic",
    "tf-bilinear",
]
_ANTIALIASED: Mapping[Filter, bool] = {
    "torchvision-bilinear": True,
    "torchvision-bicubic": True,
    "tf-bilinear": False,
}
"""``antialias`` by default in the libraries that have such an argument: torchvision since 0.17."""


class Resize(StrictModel):
    """Which library's function resizes. Both keys are written only where they say something."""

    filter: Annotated[Filter, Field(exclude_if=lambda given: given == "pillow-bilinear")] = (
        "pillow-bilinear"
    )
    """The function that the model was trained with: the library's name and the filter's in it."""
    antialias: Annotated[bool | None, Field(exclude_if=lambda given: given is None)] = None
    """Of ``torchvision-*`` and ``tf-bilinear``: whether all pixels of a picture that becomes
    smaller count. Default: that of the library, true of torchvision and false of TensorFlow."""

    @model_validator(mode="after")
    def _settle_antialias(self) -> Self:
        usual = _ANTIALIASED.get(self.filter)
        if usual is None and self.antialias is not None:
            raise ValueError(
                f"'antialias' is given with the filter {self.filter}, which has no such choice"
                f" | remove it, or give one of the filters {', '.join(_ANTIALIASED)}"
            )
        if self.antialias is None:
            # Frozen for its users; devices read the choice, not what it depends on.
            object.__setattr__(self, "antialias", usual)
        return self

    @property
    def fits_graph(self) -> bool:
        """Whether onnxruntime's operators compute it.

        Places of the nearest pixel are float32 there, areas are no operator's; a bicubic picture in
        8 bits is up to 28 of 255 away (``Resize`` of 1.31.1, tried), and without antialiasing it
        takes no channels behind the pixels.
        """
        if self.filter == "torchvision-bicubic":
            return self.antialias is True
        return self.filter in {
            "pillow-bilinear",
            "cv2-linear",
            "torchvision-bilinear",
            "tf-bilinear",
        }


class Letterbox(Resize):
    """Scale the whole image into a square, keep its shape, fill the rest."""

    letterbox: Positive
    """Side of the square in pixels."""
    pad: Annotated[int, Field(ge=0, le=255)] = 114
    """The value that fills the rest, before ``scale``."""


class ShortSideCrop(Resize):
    """Scale so that the shorter side has a size, then cut a square from the centre."""

    short_side: Positive
    crop: Positive

    @model_validator(mode="after")
    def _check_crop(self) -> Self:
        if self.crop > self.short_side:
            raise ValueError(
                f"crop {self.crop} is larger than short_side {self.short_side}"
                " | a crop must fit into the scaled image"
            )
        return self


class Stretch(Resize):
    """Scale to a size, whatever the shape of the image."""

    width: Positive
    height: Positive


class ImageInput(StrictModel):
    """How an image file becomes an input tensor.

    Resizing is that of the library which ``filter`` names; the crop starts at
    ``floor((w - s) / 2)``; then order, scale, mean, std and layout apply, in this sequence.
    Before all that the image is turned upright as its EXIF orientation says, and transparency is
    laid over white. Images with more than 8 bits a channel are refused.
    """

    resize: Letterbox | ShortSideCrop | Stretch
    order: Literal["RGB", "BGR", "GRAY"] = "RGB"
    scale: Finite = 1.0
    mean: list[Finite] = []
    """One value per channel, in ``order``, subtracted after ``scale``. Empty: zeros."""
    std: list[Finite] = []
    """One value per channel, in ``order``, divided by last. Empty: ones."""
    layout: Literal["NCHW", "NHWC"] = "NCHW"

    @model_validator(mode="after")
    def _check_channels(self) -> Self:
        channels = 1 if self.order == "GRAY" else 3
        for key, values in (("mean", self.mean), ("std", self.std)):
            if values and len(values) != channels:
                raise ValueError(
                    f"{key!r} has {len(values)} values"
                    f" | {self.order} has {channels} channels: give one value for each"
                )
        if any(value == 0 for value in self.std):
            raise ValueError("'std' holds a 0 | it is divided by: give the standard deviation")
        return self


class SoundInput(StrictModel):
    """How a ``.wav`` file becomes an input tensor: its values from -1 to 1.

    The input is ``(N,)``, ``(1, N)`` or ``(1, C, N)``, of floats, or int16 for the values of 16
    bits. Nothing is resampled or mixed: a file of another rate or with other channels is refused.
    """

    rate: Positive
    """Values a second."""
    channels: Positive = 1
    length: Positive | None = None
    """Values a sample: longer files are cut behind them, shorter ones filled up with zeros. With
    ``state`` a file is a stream of as long windows. Default: the file's, where the input takes
    any."""
    hop: Positive | None = None
    """With ``state``: how far apart windows begin; default: ``length``."""

    @model_validator(mode="after")
    def _check_hop(self) -> Self:
        if self.hop is not None and self.length is None:
            raise ValueError("'hop' is given without 'length' | give the length of a window")
        return self


class TokensInput(StrictModel):
    """How a text becomes token ids: by the ``tokenizer.json`` of a BERT model, which is WordPiece.

    The ids go into the input that this describes, the other two into the inputs that are named or,
    where none are, into those of these names that the model has. All get one text, int32 or int64
    ``(1, tokens)``.
    """

    file: str
    """One of the project's ``files``."""
    length: Annotated[int, Field(gt=1)]
    """The most tokens, special ones included; longer texts are cut. Where the input's last axis is
    fixed, the tokens are filled up to it; where it is symbolic, they are as many as there are."""
    attention_mask: str = "attention_mask"
    token_type_ids: str = "token_type_ids"  # noqa: S105  (an input, not a secret)


class InputDescription(Documented):
    """What one input of the model is made from, and what fills it up to a size in ``dims``."""

    image: ImageInput | None = None
    tokens: TokensInput | None = None
    sound: Annotated[SoundInput | None, Field(exclude_if=lambda given: given is None)] = None
    """What the input is of a ``.wav`` file, in samples as on devices."""
    pad: int | Finite | None = None
    """What the loader puts behind the input's values, along symbolic dimensions with a list of
    sizes, up to the next of them. Default: 0, which in a mask hides what it stands for."""
    mask: str | None = None
    """A symbolic dimension: the input is a mask over it. Where a caller leaves it out, the loader
    makes it: ones up to the actual size, zeros behind. Samples hold it as any other input."""

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self == InputDescription.model_construct():
            raise ValueError(
                "it says nothing"
                " | give 'image', 'tokens', 'sound', 'pad', 'mask' or 'description', or remove the"
                " input"
            )
        given = [k for k in ("image", "tokens", "sound", "pad") if getattr(self, k) is not None]
        if self.mask is not None and given:
            raise ValueError(
                f"'mask' and {given[0]!r} are given"
                " | a mask is ones and zeros, padded with zeros: give one of the two"
            )
        made = [key for key in ("image", "tokens", "sound") if getattr(self, key) is not None]
        if len(made) > 1:
            raise ValueError(f"{made[0]!r} and {made[1]!r} are given | give one of the two")
        return self


class Preprocess(StrictModel):
    """Where what ``image`` says is done: by the caller, or in the model itself."""

    in_graph: bool = False
    """Whether it is put into the model, which then takes a picture's pixels: uint8 ``(H, W, 3)``,
    RGB, of any size unless ``dims`` fixes ``<input>_height`` and ``<input>_width``."""
    extensions: list[Literal["decode_image", "tokenize"]] = []
    """What operators of onnxruntime-extensions do in the model, on Linux alone. ``decode_image``:
    it takes the bytes of a JPEG or PNG file, uint8 ``(N,)``. ``tokenize``: where an input has
    ``tokens``, it takes a text's UTF-8 bytes, uint8 ``(N,)``, and makes the ids itself."""

    @model_validator(mode="after")
    def _check_extensions(self) -> Self:
        if "decode_image" in self.extensions and not self.in_graph:
            raise ValueError(
                "'decode_image' is given without 'in_graph'"
                " | write preprocess: {in_graph: true, extensions: [decode_image]}"
            )
        return self
