"""Standard ONNX nodes that make an input tensor of a picture, as ``image`` of the input says.

They do what :mod:`~edgepack.ondevice.runtime.edgepack_images` does, for pictures of any size. All
is exact but the resizing: onnxruntime's ``Resize`` is Pillow's bilinear filter on 8-bit channels,
with weights computed in float32 where Pillow takes float64, so a value may be 1 of 255 from
Pillow's. On floats it is torchvision's and TensorFlow's, whose places it rounds in other steps:
that shows the more the larger a picture is, by 0.03 of 255 where it has 1,200 pixels a side.
Antialiasing needs ``exclude_outside``, without which the weights at the edges differ by far more
(source: the heading of onnxruntime's core/providers/cpu/tensor/upsample_antialias.h; 1.31.1 tried
on x86-64, 2026-11-28).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepack.model.facts import EXTENSIONS
from edgepack.ondevice.runtime.edgepack_images import GRAY_WEIGHTS
from edgepack.ondevice.runtime.edgepack_resizing import gives_floats
from edgepack.project.inputs import ImageInput, Letterbox, Resize, ShortSideCrop, Stretch

if TYPE_CHECKING:
    import onnx

_UINT8 = 2
"""Of onnx.TensorProto."""
OPSET = 18
"""The least opset: ``antialias`` and ``axes`` of Resize came with it (onnx Changelog.md)."""


@dataclass
class Nodes:
    """Nodes in order and the constants they read; all names begin with ``prefix``."""

    prefix: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    values: list[onnx.ValueInfoProto] = field(default_factory=list)
    """What is known about tensors in addition to what the operators show."""

    def declare(self, dtype: int, rank: int, *names: str) -> None:
        """Declare the type and rank of the outputs of onnxruntime-extensions operators.

        Shape inference finds nothing for these, and OpenVINO makes no session where a rank is not
        known.
        """
        from onnx import helper

        shape = [None] * rank
        self.values += [helper.make_tensor_value_info(name, dtype, shape) for name in names]

    def add(self, op: str, *inputs: str | np.ndarray[Any, Any], **attributes: Any) -> str:  # noqa: ANN401  (ONNX attributes)
        """Add a node; arrays among the inputs become constants. Return its output's name."""
        return self.add_several(1, op, *inputs, **attributes)[0]

    def add_several(
        self,
        count: int,
        op: str,
        *inputs: str | np.ndarray[Any, Any],
        **attributes: Any,  # noqa: ANN401  (ONNX attributes)
    ) -> list[str]:
        """Add a node that has several outputs, and return their names."""
        from onnx import helper

        name = f"{self.prefix}/{op}_{len(self.nodes)}"
        names = [
            each if isinstance(each, str) else self._add_constant(f"{name}/{place}", each)
            for place, each in enumerate(inputs)
        ]
        outputs = [name if n == 0 else f"{name}_{n}" for n in range(count)]
        self.nodes.append(helper.make_node(op, names, outputs, name, **attributes))
        return outputs

    def _add_constant(self, name: str, values: np.ndarray[Any, Any]) -> str:
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(values, name))
        return name


def make_picture_nodes(
    prefix: str, given: str, image: ImageInput, *, as_file: bool = False
) -> Nodes:
    """Return the nodes that turn a picture into what the model takes.

    Args:
        prefix: What all new names begin with.
        given: A tensor, uint8 ``(H, W, 3)``, RGB.
        image: What is to be done.
        as_file: Whether it is the bytes of a JPEG or PNG file instead, uint8 ``(N,)``.

    Returns:
        Nodes for opset 18 and newer. The last one's output is float32 ``(1, C, h, w)`` or
        ``(1, h, w, C)`` as ``layout`` says.
    """
    made = Nodes(prefix)
    pixels = _add_decoding(made, given) if as_file else given
    size = made.add("Shape", pixels, start=0, end=2)
    channels = 1 if image.order == "GRAY" else 3
    colours = _add_gray(made, pixels, bgr=as_file) if image.order == "GRAY" else pixels
    batch = made.add("Unsqueeze", colours, _int64(0))
    if gives_floats(image.resize.model_dump()):
        batch = _cast(made, batch, np.float32)
    values = _add_placement(made, batch, size, image.resize)
    # The size is known here, and providers with static shapes can take what follows.
    values = made.add("Reshape", values, _int64(1, *find_input_size(image), channels))
    _add_normalization(made, values, image, bgr=as_file)
    return made


def find_input_size(image: ImageInput) -> tuple[int, int]:
    """Return height and width of the tensor that a picture becomes."""
    resize = image.resize
    if isinstance(resize, Stretch):
        return resize.height, resize.width
    side = resize.letterbox if isinstance(resize, Letterbox) else resize.crop
    return side, side


def find_tensor_shape(image: ImageInput) -> tuple[int, int, int, int]:
    """Return the shape of the tensor that a picture becomes."""
    height, width = find_input_size(image)
    channels = 1 if image.order == "GRAY" else 3
    if image.layout == "NCHW":
        return 1, channels, height, width
    return 1, height, width, channels


def _add_decoding(made: Nodes, file: str) -> str:
    """Add decoding to uint8 ``(H, W, 3)``, BGR, not turned as EXIF says.

    Of a JPEG in gray, DecodeImage makes ``(H, W, 1)`` (onnxruntime-extensions 0.15.2, tried).
    """
    decoded = made.add("DecodeImage", file, domain=EXTENSIONS)
    made.declare(_UINT8, 3, decoded)
    return made.add("Expand", decoded, _int64(1, 1, 3))


def _add_gray(made: Nodes, pixels: str, *, bgr: bool) -> str:
    """Add luma, exact: 255 * 65536 and all sums below it are float32 numbers."""
    weights = np.array(GRAY_WEIGHTS[::-1] if bgr else GRAY_WEIGHTS, np.float32)[:, None]
    luma = made.add("MatMul", _cast(made, pixels, np.float32), weights)
    rounded = made.add("Add", luma, np.array(0x8000, np.float32))
    levels = made.add("Floor", made.add("Mul", rounded, np.array(1 / 65536, np.float32)))
    return _cast(made, levels, np.uint8)


def _add_placement(
    made: Nodes, picture: str, size: str, resize: Letterbox | ShortSideCrop | Stretch
) -> str:
    """Add resizing of ``(1, H, W, C)``, and filling or cutting to the input's size."""
    if isinstance(resize, Stretch):
        return _add_resizing(made, picture, _int64(resize.height, resize.width), resize)
    if isinstance(resize, Letterbox):
        side, measured = resize.letterbox, "ReduceMax"
    else:
        side, measured = resize.short_side, "ReduceMin"
    # As Python computes it: in float64, halves rounded to even, 1 at least.
    exact = _cast(made, size, np.float64)
    ratio = made.add("Div", _float64(side), made.add(measured, exact, keepdims=1))
    rounded = made.add("Round", made.add("Mul", exact, ratio))
    scaled = _cast(made, made.add("Max", rounded, _float64(1)), np.int64)
    picture = _add_resizing(made, picture, scaled, resize)
    if isinstance(resize, Letterbox):
        free = made.add("Sub", _int64(side), scaled)
        before = made.add("Div", free, _int64(2))
        none, after = _int64(0), made.add("Sub", free, before)
        # Of all axes: OpenVINO 2025.4.1 reads no 'axes' of Pad (tried 2026-11-22).
        pads = made.add("Concat", none, before, none, none, after, none, axis=0)
        dtype = np.float32 if gives_floats(resize.model_dump()) else np.uint8
        return made.add("Pad", picture, pads, np.array(resize.pad, dtype))
    start = made.add("Div", made.add("Sub", scaled, _int64(resize.crop)), _int64(2))
    end = made.add("Add", start, _int64(resize.crop))
    return made.add("Slice", picture, start, end, _int64(1, 2))


def _add_resizing(
    made: Nodes, picture: str, size: str | np.ndarray[Any, Any], resize: Resize
) -> str:
    """Add what resizes as one of the filters that fit into a graph."""
    if resize.filter == "cv2-linear":
        return _add_fixed_point(made, picture, size)
    spread: dict[str, int] = {"antialias": 1, "exclude_outside": 1}
    attributes: dict[str, str | float] = {"mode": "linear"}
    if resize.filter == "torchvision-bicubic":
        attributes = {"mode": "cubic", "cubic_coeff_a": -0.5}
    if resize.antialias is not False:
        attributes |= spread
    return made.add("Resize", picture, "", "", size, axes=[1, 2], **attributes)


def _add_fixed_point(made: Nodes, picture: str, size: str | np.ndarray[Any, Any]) -> str:
    """Add OpenCV's INTER_LINEAR in its own fixed point, exact: Resize rounds otherwise."""
    own = made.add("Shape", picture, start=1, end=3)
    rows, columns = (_add_linear_axis(made, own, size, axis) for axis in (0, 1))
    parts = []
    for row, share in rows:
        line = made.add("Gather", picture, row, axis=1)
        pixels = [_cast(made, made.add("Gather", line, at, axis=2), np.int32) for at, _ in columns]
        weighed = [
            made.add("Mul", each, weight) for each, (_, weight) in zip(pixels, columns, strict=True)
        ]
        across = made.add("Div", made.add("Add", *weighed), np.array(16, np.int32))
        down = made.add("Mul", across, share)
        parts.append(made.add("Div", down, np.array(1 << 16, np.int32)))
    rounded = made.add("Add", made.add("Add", *parts), np.array(2, np.int32))
    levels = made.add("Div", rounded, np.array(4, np.int32))
    return _cast(made, made.add("Min", levels, np.array(255, np.int32)), np.uint8)


def _add_linear_axis(
    made: Nodes, own: str, size: str | np.ndarray[Any, Any], axis: int
) -> list[tuple[str, str]]:
    """Return two pixels and their weights, of each new one along an axis; 0 is the rows'.

    What is double in OpenCV is double here (modules/imgproc/src/resize.cpp), and 1 is 2048.
    """
    old, new = (made.add("Gather", each, _int64(axis)) for each in (own, size))
    inverse = made.add("Div", _cast(made, new, np.float64), _cast(made, old, np.float64))
    scale = made.add("Div", _float64(1), inverse)
    count = made.add("Squeeze", new, _int64(0))
    numbers = made.add("Range", np.array(0, np.int64), count, np.array(1, np.int64))
    centres = made.add("Add", _cast(made, numbers, np.float64), _float64(0.5))
    exact = made.add("Sub", made.add("Mul", centres, scale), _float64(0.5))
    place = _cast(made, exact, np.float32)
    before = made.add("Floor", place)
    part = made.add("Sub", place, before)
    first = _cast(made, before, np.int64)
    last = made.add("Sub", old, _int64(1))
    if axis == 1:  # of rows alone OpenCV weighs what lies outside
        above = made.add("Less", first, _int64(0))
        outside = made.add("Or", above, made.add("GreaterOrEqual", first, last))
        part = made.add("Where", outside, np.array(0, np.float32), part)
    shape = _int64(1, 1, -1, 1) if axis else _int64(1, -1, 1, 1)
    found = []
    for step, share in enumerate((made.add("Sub", np.array(1, np.float32), part), part)):
        weight = made.add("Round", made.add("Mul", share, np.array(2048, np.float32)))
        at = made.add("Max", made.add("Add", first, _int64(step)), _int64(0))
        shaped = made.add("Reshape", _cast(made, weight, np.int32), shape)
        found.append((made.add("Min", at, last), shaped))
    return found


def _add_normalization(made: Nodes, values: str, image: ImageInput, *, bgr: bool) -> None:
    """Add order, scale, mean, std and layout to ``(1, h, w, C)``, in the order that holds."""
    if image.order == ("RGB" if bgr else "BGR"):
        values = made.add("Gather", values, _int64(2, 1, 0), axis=3)
    values = _cast(made, values, np.float32)
    if image.scale != 1.0:
        values = made.add("Mul", values, np.array(image.scale, np.float32))
    if image.mean:
        values = made.add("Sub", values, np.array(image.mean, np.float32))
    if image.std:
        values = made.add("Div", values, np.array(image.std, np.float32))
    if image.layout == "NCHW":
        made.add("Transpose", values, perm=[0, 3, 1, 2])


def _cast(made: Nodes, values: str, dtype: type[np.generic]) -> str:
    from onnx import helper

    return made.add("Cast", values, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _int64(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def _float64(value: float) -> np.ndarray[Any, Any]:
    return np.array([value], np.float64)


def put_before(model: onnx.ModelProto, given: onnx.ValueInfoProto, image: ImageInput) -> None:
    """Make a model take a picture instead of the tensor that ``image`` makes of it.

    The tensor is of the type that the model takes, float32 or float16.

    Args:
        model: Is changed. Its opset is 18 or newer.
        given: The new input, uint8 ``(H, W, 3)`` or a file's bytes, ``(N,)``; it has the name of
            the one it replaces.
        image: What is to be done to the picture.
    """
    from onnx import TensorProto, helper

    as_file = len(given.type.tensor_type.shape.dim) == 1
    prefix = find_unused_prefix(model.graph, f"preprocess/{given.name}")
    made = make_picture_nodes(prefix, given.name, image, as_file=as_file)
    tensor, dtype = made.nodes[-1].output[0], TensorProto.FLOAT
    for taken in model.graph.input:
        if taken.name == given.name and taken.type.tensor_type.elem_type != dtype:
            dtype = taken.type.tensor_type.elem_type
            tensor = made.add("Cast", tensor, to=dtype)
    value = helper.make_tensor_value_info(tensor, dtype, find_tensor_shape(image))
    insert(model, made, given, {given.name: value})


def insert(
    model: onnx.ModelProto,
    made: Nodes,
    given: onnx.ValueInfoProto,
    tensors: Mapping[str, onnx.ValueInfoProto],
) -> None:
    """Put nodes in front of a model.

    Args:
        model: Is changed.
        made: The nodes; of the model's inputs they read ``given`` alone.
        given: An input that takes the place of one of the same name.
        tensors: By input of the model, what ``made`` gives in its stead. All but ``given`` go.
    """
    from onnx import helper

    graph = model.graph
    for name, value in tensors.items():
        _rename_reads(graph.node, name, value.name)
    kept = [
        given if value.name == given.name else value
        for value in graph.input
        if value.name == given.name or value.name not in tensors
    ]
    nodes = [*made.nodes, *graph.node]
    del graph.node[:], graph.input[:]
    graph.input.extend(kept)
    graph.node.extend(nodes)
    graph.initializer.extend(made.constants)
    graph.value_info.extend([*made.values, *tensors.values()])
    known = {entry.domain for entry in model.opset_import}
    for domain in sorted({node.domain for node in made.nodes} - known - {""}):
        model.opset_import.append(helper.make_opsetid(domain, 1))


def find_unused_prefix(graph: onnx.GraphProto, prefix: str) -> str:
    """Return a prefix that no name in the graph begins with, subgraphs included."""
    used = set(_list_names(graph))
    while any(name.startswith(prefix) for name in used):
        prefix += "_"
    return prefix


def _list_names(graph: onnx.GraphProto) -> Iterable[str]:
    yield from (value.name for value in (*graph.input, *graph.initializer))
    for node in graph.node:
        yield node.name
        yield from node.output
        for body in list_bodies(node):
            yield from _list_names(body)


def list_bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the graphs in a node's attributes, such as the branches of an If."""
    return [graph for a in node.attribute for graph in ([a.g] if a.HasField("g") else a.graphs)]


def _rename_reads(nodes: Iterable[onnx.NodeProto], name: str, to: str) -> None:
    """Make nodes and the graphs in them read another tensor.

    No body makes a tensor with the name of an outer one (onnx/docs/IR.md, "Names Within a Graph").
    """
    for node in nodes:
        for place, read in enumerate(node.input):
            if read == name:
                node.input[place] = to
        for body in list_bodies(node):
            _rename_reads(body.node, name, to)
