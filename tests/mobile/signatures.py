"""Projects whose models have signatures that differ: what the code of phone bundles has to take.

Each is written into a folder of its own, with samples, for one target.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.mobile.vectors import WORDS, tokenizer

Value = tuple[str, int, Sequence[int | str]]
Samples = Mapping[str, np.ndarray]
SAMPLES = 3


@dataclass(frozen=True)
class Signature:
    """A project to write."""

    name: str
    nodes: tuple[onnx.NodeProto, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    samples: Callable[[np.random.Generator], Samples]
    """One array per input; the leading axis is the sample."""
    constants: tuple[tuple[str, np.ndarray], ...] = ()
    project: str = ""
    """More lines of edgepack.yaml."""
    variants: str = "[{backend: cpu, recipe: fp32}]"
    """Of the target; empty for the profile's own."""
    files: tuple[tuple[str, str], ...] = ()
    """Of the project: name and text."""

    def write(self, folder: Path, target: str) -> Path:
        """Write model, samples and project, and return the project's file."""
        folder.mkdir(parents=True)
        self._write_model(folder / "model.onnx")
        np.savez(folder / "samples.npz", **self.samples(np.random.default_rng(1)))
        for name, text in self.files:
            (folder / name).write_text(text, encoding="utf-8")
        names = ", ".join(json.dumps(name) for name, _ in self.files)
        chosen = f"{{id: {target}, variants: {self.variants}}}" if self.variants else target
        lines = [
            "schema_version: 1",
            f"name: {self.name}",
            'version: "1.0.0"',
            "model: model.onnx",
            f"files: [{names}]",
            "samples:",
            "  calibration: {path: samples.npz}",
            "  evaluation: {path: samples.npz}",
            f"targets: [{chosen}]",
        ]
        path = folder / "edgepack.yaml"
        path.write_text("\n".join([*lines, self.project, ""]), encoding="utf-8")
        return path

    def _write_model(self, path: Path) -> None:
        graph = helper.make_graph(
            list(self.nodes),
            self.name,
            [helper.make_tensor_value_info(*value) for value in self.inputs],
            [helper.make_tensor_value_info(*value) for value in self.outputs],
            [numpy_helper.from_array(array, name) for name, array in self.constants],
        )
        opsets = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))


def _floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


_node = helper.make_node

SEVERAL_INPUTS = Signature(
    "several-inputs",
    (
        _node("Cast", ["step count"], ["f"], "cast", to=TensorProto.FLOAT),
        _node("Mul", ["values", "f"], ["m"], "mul"),
        _node("Gather", ["table", "class"], ["g"], "gather"),
        _node("Add", ["m", "g"], ["sum"], "add"),
        _node("Add", ["class", "one"], ["self"], "next"),
        _node("Greater", ["sum", "zero"], ["2nd-flags"], "flags"),
    ),
    (
        ("values", TensorProto.FLOAT, [1, 4]),
        ("step count", TensorProto.INT32, [1, 1]),
        ("class", TensorProto.INT64, [1]),
    ),
    (
        ("sum", TensorProto.FLOAT, [1, 4]),
        ("self", TensorProto.INT64, [1]),
        ("2nd-flags", TensorProto.BOOL, [1, 4]),
    ),
    lambda random: {
        "values": random.standard_normal((SAMPLES, 4)).astype(np.float32),
        "step count": np.arange(1, SAMPLES + 1, dtype=np.int32)[:, None],
        "class": np.arange(SAMPLES, dtype=np.int64),
    },
    (
        ("table", _floats(5, 4)),
        ("one", np.array(1, np.int64)),
        ("zero", np.array(0, np.float32)),
    ),
)
"""Three types in, three out; names that are keywords, or no identifiers at all."""

DYNAMIC_BATCH = Signature(
    "dynamic-batch",
    (
        _node("Conv", ["image", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        _node("Relu", ["c"], ["r"], "relu"),
        _node("GlobalAveragePool", ["r"], ["p"], "pool"),
        _node("Flatten", ["p"], ["f"], "flat"),
        _node("MatMul", ["f", "v"], ["scores"], "linear"),
    ),
    (("image", TensorProto.FLOAT, ["batch", 3, 8, 8]),),
    (("scores", TensorProto.FLOAT, ["batch", 4]),),
    lambda random: {"image": random.standard_normal((SAMPLES, 3, 8, 8)).astype(np.float32)},
    (("w", _floats(8, 3, 3, 3)), ("v", _floats(8, 4))),
    "inputs: {image: {image: {resize: {short_side: 10, crop: 8}, scale: 0.00392157}}}\n"
    "outputs: {scores: {kind: classification, labels: labels.txt, activation: softmax, top: 2}}",
    "[{backend: cpu, recipe: int8-static}, {backend: cpu, recipe: fp32}]",
    (("labels.txt", "ant\nbee\ncat\ndog\n"),),
)
"""A picture of any number; classes."""

CONV = Signature(
    "conv",
    (
        _node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        _node("Relu", ["c"], ["y"], "relu"),
    ),
    (("x", TensorProto.FLOAT, [1, 3, 8, 8]),),
    (("y", TensorProto.FLOAT, [1, 8, 8, 8]),),
    lambda random: {"x": random.standard_normal((32, 1, 3, 8, 8)).astype(np.float32)},
    (("w", _floats(8, 3, 3, 3)),),
    "",
    "[{backend: qnn, recipe: int8-static, placement: 0.3, dialect: {activations: uint8,"
    " weights: int8, symmetric: false, per_channel: true}, providers: [{name: QNNExecutionProvider,"
    " options: {backend_path: libQnnHtp.so}}, {name: CPUExecutionProvider}]},"
    " {backend: cpu, recipe: fp32}]",
)
"""For Qualcomm's simulator, which lists no NPU and is therefore named by its library."""

HALF = Signature(
    "half",
    (
        _node("MatMul", ["x", "w"], ["m"], "matmul"),
        _node("Tanh", ["m"], ["y"], "tanh"),
    ),
    (("x", TensorProto.FLOAT16, [1, 4]),),
    (("y", TensorProto.FLOAT16, [1, 3]),),
    lambda random: {"x": random.standard_normal((SAMPLES, 4)).astype(np.float16)},
    (("w", _floats(4, 3).astype(np.float16)),),
)
"""float16 in and out."""

BUCKETS = Signature(
    "buckets",
    (
        _node("Gather", ["table", "input_ids"], ["g"], "gather"),
        _node("Cast", ["attention_mask"], ["f"], "cast", to=TensorProto.FLOAT),
        _node("Unsqueeze", ["f", "last"], ["u"], "unsqueeze"),
        _node("Mul", ["g", "u"], ["hidden"], "mul"),
        _node("ReduceSum", ["hidden", "middle"], ["pooled"], "sum", keepdims=0),
    ),
    (
        ("input_ids", TensorProto.INT64, [1, "sequence"]),
        ("attention_mask", TensorProto.INT64, [1, "sequence"]),
    ),
    (
        ("hidden", TensorProto.FLOAT, [1, "sequence", 6]),
        ("pooled", TensorProto.FLOAT, [1, 6]),
    ),
    lambda random: {
        "input_ids": random.integers(1, 16, (SAMPLES, 5)),
        "attention_mask": np.ones((SAMPLES, 5), np.int64),
    },
    (
        ("table", _floats(16, 6)),
        ("last", np.array([2], np.int64)),
        ("middle", np.array([1], np.int64)),
    ),
    "dims: {sequence: [4, 8]}\n"
    "inputs: {input_ids: {pad: 0}, attention_mask: {mask: sequence}}\n"
    "outputs: {hidden: {kind: embedding, pooling: mean, mask: attention_mask, normalize: true}}",
    "[{backend: cpu, recipe: fp32, shapes: static}]",
)
"""A model for each of two lengths, a mask that may be left out, vectors."""

HOSTILE = (
    'Ends */ or /* begins, */*/ "quotes" `code`\n\n@throws nothing\r\n- Parameter x: $y ${z} \\(v)'
    f' \u202e{{{{ 1 }}}} """ {"long " * 60}@return {"x" * 300}'
)
"""A description that would end a comment, or be a tag or code in it."""

DETECTOR = Signature(
    "detector",
    (
        _node("ReduceMean", ["images"], ["m"], "mean", axes=[1, 2, 3], keepdims=1),
        _node("Squeeze", ["m", "last"], ["s"], "squeeze"),
        _node("Mul", ["rows", "one"], ["r"], "rows"),
        _node("Add", ["s", "zeros"], ["z"], "zero"),
        _node("Mul", ["z", "nothing"], ["n"], "nothing"),
        _node("Add", ["r", "n"], ["output0"], "add"),
    ),
    (("images", TensorProto.FLOAT, [1, 3, 32, 32]),),
    (("output0", TensorProto.FLOAT, [1, 6, 3]),),
    lambda random: {
        "images": random.integers(0, 256, (SAMPLES, 3, 32, 32)).astype(np.float32) / np.float32(255)
    },
    (
        ("last", np.array([3], np.int64)),
        ("one", np.array(1, np.float32)),
        ("zeros", np.zeros((1, 6, 3), np.float32)),
        ("nothing", np.array(1e-3, np.float32)),
        (
            "rows",  # cx, cy, width, height, two scores; the second overlaps the first
            np.array(
                [[[16, 17, 8], [16, 16, 20], [8, 8, 4], [8, 8, 6], [0.9, 0.8, 0.1], [0, 0, 0.7]]],
                np.float32,
            ),
        ),
    ),
    "inputs: {images: {image: {resize: {letterbox: 32}, scale: 0.00392157},"
    " description: A photo of a table.}}\n"
    "outputs: {output0: {kind: detection, layout: yolo, labels: labels.txt, name: objects,"
    f" description: {json.dumps(HOSTILE)}}}}}",
    "[{backend: cpu, recipe: fp32}]",
    (("labels.txt", "cup\nplate\n"),),
)
"""A letterboxed picture; objects."""

FACES = Signature(
    "faces",
    (
        _node("ReduceMean", ["images"], ["m"], "mean", axes=[1, 2, 3], keepdims=1),
        _node("Squeeze", ["m", "last"], ["s"], "squeeze"),
        _node("Mul", ["s", "nothing"], ["n"], "nothing"),
        _node("Add", ["logits", "n"], ["scores"], "scores"),
        _node("Add", ["offsets", "n"], ["boxes"], "boxes"),
    ),
    DETECTOR.inputs,
    (("scores", TensorProto.FLOAT, [1, 4, 3]), ("boxes", TensorProto.FLOAT, [1, 4, 4])),
    DETECTOR.samples,
    (
        ("last", np.array([3], np.int64)),
        ("nothing", np.array(1e-3, np.float32)),
        ("logits", np.float32([[[0, 4, 1], [0, 3, 1], [0, 1, 2], [5, 1, 2]]])),
        ("offsets", np.float32([[[0, 0, 0, 0], [1, 1, 0, 0], [-2, 3, 1, -1], [0, 0, 0, 0]]])),
    ),
    DETECTOR.project.partition("outputs:")[0]
    + "outputs: {boxes: {kind: detection, layout: ssd, scores: scores, background: true,"
    " activation: softmax, priors: priors.txt, labels: labels.txt}}",
    "[{backend: cpu, recipe: fp32}]",
    (
        *DETECTOR.files,
        (
            "priors.txt",
            "0.5,0.5,0.6,0.4\n0.5,0.5,0.6,0.4\n0.25,0.75,0.2,0.3\n0.5,0.5,0.9,0.9\n",
        ),
    ),
)
"""Boxes and scores in an output each; objects."""
OTHER_PRIORS = {
    "0.5,0.5,0.6,0.4\n" * 3: "files/priors.txt has 3 priors, the output 'boxes' 4 boxes",
    "0.5,0.5,0.6,0.4\n" * 3 + "0.5,0.5": "files/priors.txt: line 4 is '0.5,0.5', expected four"
    " numbers: cx,cy,w,h",
}
"""What its priors may be instead, and what is said of each, behind that the bundle is damaged."""

READER = Signature(
    "reader",
    (
        _node("ReduceMean", ["images"], ["columns"], "mean", axes=[2], keepdims=0),
        _node("Mul", ["columns", "much"], ["far"], "far"),
        _node("Transpose", ["far"], ["steps"], "turn", perm=[2, 0, 1]),
        _node("ReduceMean", ["images"], ["means"], "means", axes=[2, 3], keepdims=0),
        _node("Mul", ["means", "little"], ["moves"], "little"),
        _node("Add", ["rows", "moves"], ["poses"], "add"),
    ),
    (("images", TensorProto.FLOAT, [1, 3, 8, 32]),),
    (("steps", TensorProto.FLOAT, [32, 1, 3]), ("poses", TensorProto.FLOAT, [1, 12, 3])),
    lambda random: {
        "images": random.integers(0, 256, (SAMPLES, 3, 8, 32)).astype(np.float32) / np.float32(255)
    },
    (
        ("much", np.array(9, np.float32)),
        ("little", np.array(1e-3, np.float32)),
        (
            "rows",  # a box, two scores, and two keypoints with a score each
            np.float32(
                [
                    [
                        [16, 9, 25],
                        [4, 4, 2],
                        [8, 6, 4],
                        [6, 4, 2],
                        [0.9, 0.1, 0.2],
                        [0, 0.7, 0.1],
                        [14, 8, 2],
                        [3, 5, 1],
                        [0.9, 0.5, 0.1],
                        [-3, 9, 25],
                        [5, 2, 99],
                        [0.1, 0.25, 0.5],
                    ]
                ]
            ),
        ),
    ),
    "inputs: {images: {image: {resize: {width: 32, height: 8}, scale: 0.00392157}}}\n"
    "outputs: {steps: {kind: text, labels: alphabet.txt, blank: -1, activation: softmax},"
    " poses: {kind: detection, layout: yolo, keypoints: 2, labels: labels.txt, score: 0.15}}",
    "[{backend: cpu, recipe: fp32}]",
    (("alphabet.txt", "a\n\u732b\n"), ("labels.txt", "cup\nplate\n")),
)
"""A line of text, where the colour of each column is a symbol or none; objects with keypoints."""

PIXELS = replace(
    DETECTOR,
    name="pixels",
    samples=lambda random: {"images": random.integers(0, 256, (SAMPLES, 40, 50, 3), np.uint8)},
    project=f"{DETECTOR.project}\npreprocess: {{in_graph: true}}",
)
"""The same with preprocessing in the graph: it takes the picture itself."""

TEXT = replace(
    BUCKETS,
    name="text",
    constants=(("table", _floats(len(WORDS), 6)), *BUCKETS.constants[1:]),
    project="inputs: {input_ids: {tokens: {file: tokenizer.json, length: 8}}}\n"
    "outputs: {hidden: {kind: embedding, pooling: mean, mask: attention_mask}}",
    variants="[{backend: cpu, recipe: fp32}]",
    files=(("tokenizer.json", json.dumps(tokenizer())),),
)
"""A text, which becomes tokens."""

SIZED = replace(
    DETECTOR,
    name="sized",
    nodes=(
        *DETECTOR.nodes[:-1],
        _node("Cast", ["orig_target_sizes"], ["f"], "cast", to=TensorProto.FLOAT),
        _node("ReduceSum", ["f", "axis"], ["t"], "sum"),
        _node("Mul", ["t", "tiny"], ["u"], "scale"),
        _node("Add", ["n", "u"], ["d"], "shift"),
        _node("Add", ["r", "d"], ["output0"], "add"),
    ),
    inputs=(*DETECTOR.inputs, ("orig_target_sizes", TensorProto.INT64, [1, 2])),
    samples=lambda random: {
        **DETECTOR.samples(random),
        "orig_target_sizes": np.tile(np.array([[480, 640]], np.int64), (SAMPLES, 1)),
    },
    constants=(
        *DETECTOR.constants,
        ("axis", np.array([1], np.int64)),
        ("tiny", np.array(1e-6, np.float32)),
    ),
)
"""The same with a second input, which no picture gives."""

PAIR = Signature(
    "pair",
    (
        _node("ReduceMean", ["pixels"], ["a"], "first", axes=[2, 3], keepdims=0),
        _node("ReduceMean", ["reference image"], ["b"], "second", axes=[1, 2], keepdims=0),
        _node("Sub", ["a", "b"], ["difference"], "sub"),
    ),
    (
        ("pixels", TensorProto.FLOAT, [1, 3, 12, 12]),
        ("reference image", TensorProto.FLOAT, [1, 6, 4, 3]),
    ),
    (("difference", TensorProto.FLOAT, [1, 3]),),
    lambda random: {
        "pixels": random.random((SAMPLES, 3, 12, 12)).astype(np.float32),
        "reference image": random.random((SAMPLES, 6, 4, 3)).astype(np.float32),
    },
    project="""\
inputs:
  pixels: {image: {resize: {letterbox: 12}, scale: 0.00392157}}
  reference image: {image: {resize: {width: 4, height: 6}, layout: NHWC, order: BGR}}
outputs: {difference: {kind: embedding, pooling: none}}
""",
)
"""Two pictures, each prepared in a way of its own."""

CAPTION = replace(
    TEXT,
    name="caption",
    nodes=(
        *BUCKETS.nodes,
        _node("ReduceMean", ["pixel_values"], ["p"], "mean", axes=[1, 2, 3], keepdims=0),
        _node("Add", ["pooled", "p"], ["joint"], "join"),
    ),
    inputs=(("pixel_values", TensorProto.FLOAT, [1, 3, 8, 8]), *BUCKETS.inputs),
    outputs=(("joint", TensorProto.FLOAT, [1, 6]),),
    samples=lambda random: {
        "pixel_values": random.random((SAMPLES, 3, 8, 8)).astype(np.float32),
        **TEXT.samples(random),
    },
    project="""\
inputs:
  pixel_values: {image: {resize: {short_side: 10, crop: 8}, scale: 0.00392157}}
  input_ids: {tokens: {file: tokenizer.json, length: 8}}
outputs: {joint: {kind: embedding, pooling: none}}
""",
)
"""A picture and a text."""

ALL = (SEVERAL_INPUTS, DYNAMIC_BATCH, HALF, BUCKETS, DETECTOR)
