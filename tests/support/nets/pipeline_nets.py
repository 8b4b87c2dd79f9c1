"""Small models that run one after the other.

A wake word's chain, an encoder with a decoder, and a detector with a classifier of what it finds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.support.nets.tiny_models import save

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Array = np.ndarray[Any, Any]
Weights = Mapping[str, Array]

SAMPLES, BINS, FRAMES = 64, 32, 16
FEATURES, HIDDEN, SCORES = 16, 24, 2
WIDTH, HEADS, TOKENS, PLACES = 16, 2, 24, 64
START, END = 0, 1


def make_weights(seed: int, **shapes: tuple[int, ...]) -> dict[str, Array]:
    """Return normal weights, scaled so that products keep their size."""
    random = np.random.default_rng(seed)
    return {
        name: (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_mel(path: Path) -> Path:
    """``audio`` [1, 16, 64] to ``mel`` [1, 16, 32]: the logarithm of products' sizes."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["audio", "filters"], ["bands"], "bands"),
        node("Abs", ["bands"], ["sizes"], "sizes"),
        node("Add", ["sizes", "floor"], ["raised"], "raised"),
        node("Log", ["raised"], ["mel"], "mel"),
    ]
    weights = {**make_weights(1, filters=(SAMPLES, BINS)), "floor": np.float32([0.1])}
    inputs, outputs = [("audio", FLOAT, [1, FRAMES, SAMPLES])], [("mel", FLOAT, [1, FRAMES, BINS])]
    return save(path, nodes, inputs, outputs, list(weights.items()))


def write_embedding(path: Path, *, bins: int = BINS) -> Path:
    """``mel`` [1, 16, 32] to ``features`` [1, 16]: two convolutions and their means."""
    node = helper.make_node
    nodes = [
        node("Unsqueeze", ["mel", "axis"], ["picture"], "picture"),
        node("Conv", ["picture", "k1", "b1"], ["c1"], "c1", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c1"], ["r1"], "r1"),
        node("Conv", ["r1", "k2", "b2"], ["c2"], "c2", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c2"], ["r2"], "r2"),
        node("GlobalAveragePool", ["r2"], ["means"], "means"),
        node("Flatten", ["means"], ["features"], "features"),
    ]
    weights = make_weights(2, k1=(8, 1, 3, 3), k2=(FEATURES, 8, 3, 3))
    weights |= {"b1": np.full(8, 0.1, np.float32), "b2": np.full(FEATURES, 0.1, np.float32)}
    weights["axis"] = np.array([1])
    inputs, outputs = [("mel", FLOAT, [1, FRAMES, bins])], [("features", FLOAT, [1, FEATURES])]
    return save(path, nodes, inputs, outputs, list(weights.items()))


def write_classifier(path: Path) -> Path:
    """``x`` [1, 16] and ``h`` [1, 24] to ``score`` [1, 2] and ``h_next``: it remembers."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "wx"], ["new"], "new"),
        node("MatMul", ["h", "wh"], ["old"], "old"),
        node("Add", ["new", "old"], ["both"], "both"),
        node("Tanh", ["both"], ["h_next"], "h_next"),
        node("MatMul", ["h_next", "wo"], ["score"], "score"),
    ]
    shapes = {"wx": (FEATURES, HIDDEN), "wh": (HIDDEN, HIDDEN), "wo": (HIDDEN, SCORES)}
    weights = make_weights(3, **shapes)
    weights["wx"] *= 3  # or what it remembers would outweigh what it hears
    state = (FLOAT, [1, HIDDEN])
    inputs = [("x", FLOAT, [1, FEATURES]), ("h", *state)]
    outputs = [("score", FLOAT, [1, SCORES]), ("h_next", *state)]
    return save(path, nodes, inputs, outputs, list(weights.items()))


def make_audio(count: int, seed: int = 0) -> Array:
    """Inputs of a wake word's chain: (count, 16, 64), louder and softer."""
    random = np.random.default_rng(seed)
    loudness = random.uniform(0.2, 3, (count, 1, 1))
    return (loudness * random.standard_normal((count, FRAMES, SAMPLES))).astype(np.float32)


def make_encoder_weights() -> dict[str, Array]:
    """The weights of :func:`write_encoder`."""
    return make_weights(4, w1=(8, WIDTH), w2=(WIDTH, WIDTH))


def write_encoder(path: Path) -> Path:
    """``source`` [1, length, 8] to ``hidden`` [1, length, 16]."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["source", "w1"], ["a"], "a"),
        node("Tanh", ["a"], ["b"], "b"),
        node("MatMul", ["b", "w2"], ["hidden"], "hidden"),
    ]
    inputs = [("source", FLOAT, [1, "length", 8])]
    outputs = [("hidden", FLOAT, [1, "length", WIDTH])]
    return save(path, nodes, inputs, outputs, list(make_encoder_weights().items()))


def make_decoder_weights() -> dict[str, Array]:
    """The weights of :func:`write_decoder`, a layer of a transformer."""
    square = dict.fromkeys(("wq", "wk", "wv", "wo", "cq", "ck", "cv", "co"), (WIDTH, WIDTH))
    weights = make_weights(
        6,
        **square,
        up=(WIDTH, 32),
        down=(32, WIDTH),
        out=(WIDTH, TOKENS),
        table=(TOKENS, WIDTH),
        places=(PLACES, WIDTH),
    )
    # Rows of tables are looked up, not summed.
    weights["table"] *= np.sqrt(TOKENS)
    weights["places"] *= np.sqrt(PLACES)
    weights["co"] *= 3  # or the source would hardly be heard
    return weights


def write_decoder(path: Path) -> Path:
    """One token, its place, ``hidden`` and a cache to ``logits`` [1, 1, 24] and the longer cache.

    The cache is ``past.key`` and ``past.value`` [1, 2, past, 8], which come out as ``present.*``.
    """
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "token"], ["looked"], "looked"),
        node("Gather", ["places", "position"], ["place"], "place"),
        node("Add", ["looked", "place"], ["x0"], "x0"),
    ]
    for name, origin, weight in (
        ("q", "x0", "wq"),
        ("k", "x0", "wk"),
        ("v", "x0", "wv"),
        ("fk", "hidden", "ck"),
        ("fv", "hidden", "cv"),
    ):
        nodes += _split_heads(name, origin, weight)
    nodes += [
        node("Concat", ["past.key", "k"], ["present.key"], "keys", axis=2),
        node("Concat", ["past.value", "v"], ["present.value"], "values", axis=2),
        *_attend("self", "q", "present.key", "present.value", "wo"),
        node("Add", ["x0", "self"], ["x1"], "x1"),
        *_split_heads("fq", "x1", "cq"),
        *_attend("cross", "fq", "fk", "fv", "co"),
        node("Add", ["x1", "cross"], ["x2"], "x2"),
        node("MatMul", ["x2", "up"], ["u"], "u"),
        node("Relu", ["u"], ["ur"], "ur"),
        node("MatMul", ["ur", "down"], ["d"], "d"),
        node("Add", ["x2", "d"], ["x3"], "x3"),
        node("MatMul", ["x3", "out"], ["logits"], "logits"),
    ]
    weights = {
        **make_decoder_weights(),
        "heads": np.array([1, -1, HEADS, WIDTH // HEADS]),
        "joined": np.array([1, -1, WIDTH]),
        "root": np.float32(np.sqrt(WIDTH // HEADS)),
    }
    cache = ("past.key", "past.value"), ("present.key", "present.value")
    shape = [1, HEADS, "past", WIDTH // HEADS], [1, HEADS, "total", WIDTH // HEADS]
    inputs = [
        ("token", INT64, [1, 1]),
        ("position", INT64, [1, 1]),
        ("hidden", FLOAT, [1, "length", WIDTH]),
        *((name, FLOAT, shape[0]) for name in cache[0]),
    ]
    outputs = [
        ("logits", FLOAT, [1, 1, TOKENS]),
        *((name, FLOAT, shape[1]) for name in cache[1]),
    ]
    return save(path, nodes, inputs, outputs, list(weights.items()))


def write_counting_decoder(path: Path) -> Path:
    """A token, ``sum`` [1, 1] and ``past`` [1, past] to ``logits`` [1, 1, 3] and both, longer.

    The sum of the tokens so far is its state, the tokens are its cache; token 1 is the best always.
    """
    node = helper.make_node
    nodes = [
        node("Cast", ["ids"], ["new"], "new", to=FLOAT),
        node("Add", ["sum", "new"], ["sum_next"], "add"),
        node("Concat", ["past", "new"], ["present"], "concat", axis=1),
        node("Mul", ["new", "zero"], ["nothing"], "nothing"),
        node("Add", ["nothing", "scores"], ["logits"], "logits"),
    ]
    weights = [("zero", np.float32([0])), ("scores", np.float32([[[0, 1, 0]]]))]
    state, past = (FLOAT, [1, 1]), (FLOAT, [1, "past"])
    inputs = [("ids", INT64, [1, 1]), ("sum", *state), ("past", *past)]
    outputs = [
        ("logits", FLOAT, [1, 1, 3]),
        ("sum_next", *state),
        ("present", FLOAT, [1, "total"]),
    ]
    return save(path, nodes, inputs, outputs, weights)


def _split_heads(name: str, origin: str, weight: str) -> list[Any]:
    node = helper.make_node
    return [
        node("MatMul", [origin, weight], [f"{name}_m"], f"{name}_m"),
        node("Reshape", [f"{name}_m", "heads"], [f"{name}_r"], f"{name}_r"),
        node("Transpose", [f"{name}_r"], [name], name, perm=[0, 2, 1, 3]),
    ]


def _attend(name: str, query: str, key: str, value: str, weight: str) -> list[Any]:
    node, made = helper.make_node, [f"{name}_{letter}" for letter in "abcdefg"]
    return [
        node("Transpose", [key], [made[0]], made[0], perm=[0, 1, 3, 2]),
        node("MatMul", [query, made[0]], [made[1]], made[1]),
        node("Div", [made[1], "root"], [made[2]], made[2]),
        node("Softmax", [made[2]], [made[3]], made[3], axis=-1),
        node("MatMul", [made[3], value], [made[4]], made[4]),
        node("Transpose", [made[4]], [made[5]], made[5], perm=[0, 2, 1, 3]),
        node("Reshape", [made[5], "joined"], [made[6]], made[6]),
        node("MatMul", [made[6], weight], [name], name),
    ]


def decode_by_hand(source: Array, most: int) -> list[int]:
    """Return what encoder and decoder give for a source, in numpy and without a cache.

    Each token's scores are computed from all tokens before it anew.
    """
    encoder, weights = make_encoder_weights(), make_decoder_weights()
    hidden = np.tanh(source[0] @ encoder["w1"]) @ encoder["w2"]
    tokens = [START]
    while len(tokens) <= most:
        x = weights["table"][tokens] + weights["places"][: len(tokens)]
        reach = np.tril(np.ones([len(tokens)] * 2, bool))
        x = x + _attend_by_hand(x, x, weights, "w", reach)
        x = x + _attend_by_hand(x, hidden, weights, "c", np.ones((len(x), len(hidden)), bool))
        x = x + np.maximum(x @ weights["up"], 0) @ weights["down"]
        best = int(np.argmax(x[-1] @ weights["out"]))
        if best == END:
            break
        tokens.append(best)
    return tokens[1:]


def _attend_by_hand(x: Array, y: Array, weights: Weights, kind: str, reach: Array) -> Array:
    size = WIDTH // HEADS
    query, key, value = x @ weights[f"{kind}q"], y @ weights[f"{kind}k"], y @ weights[f"{kind}v"]
    found = []
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        scores = query[:, part] @ key[:, part].T / np.sqrt(size)
        scores = np.where(reach, scores, -np.inf)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        found.append(shares / shares.sum(axis=1, keepdims=True) @ value[:, part])
    return np.concatenate(found, axis=1) @ weights[f"{kind}o"]


def write_part(folder: Path, name: str, recipes: str = "fp32", more: str = "") -> str:
    """Write the project of a part with variants of these recipes, and return its file's name."""
    variants = ", ".join(f"{{backend: cpu, recipe: {recipe}}}" for recipe in recipes.split())
    (folder / f"{name}.yaml").write_text(
        f"schema_version: 1\nname: {name}\nmodel: {name}.onnx\n"
        f"targets: [{{id: host, variants: [{variants}]}}]\n{more}"
    )
    return f"{name}.yaml"


WAKE_STAGES = (
    "    - run: mel\n    - run: embedding\n    - {run: classifier, inputs: {x: features}}\n"
)


def write_wake_project(folder: Path, *, recipes: str = "fp32", stages: str = WAKE_STAGES) -> Path:
    """Write a project of three models, the last with a state, and return its file.

    The embedding's variants have the recipes. There are 16 samples to calibrate with in two
    streams, and 8 to evaluate.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_mel(folder / "mel.onnx")
    write_embedding(folder / "embedding.onnx")
    write_classifier(folder / "classifier.onnx")
    parts = {
        "mel": write_part(folder, "mel"),
        "embedding": write_part(folder, "embedding", recipes),
        "classifier": write_part(folder, "classifier", more="state: {h_next: h}\n"),
    }
    audio = make_audio(24)
    np.savez(folder / "first.npz", audio=audio[:16], stream=np.repeat([0, 1], 8))
    np.savez(folder / "rest.npz", audio=audio[16:], stream=np.zeros(8))
    path = folder / "edgepack.yaml"
    path.write_text(
        "schema_version: 1\nname: wake\nversion: 1.0.0\n"
        f"models: {{{', '.join(f'{name}: {file}' for name, file in parts.items())}}}\n"
        f"pipeline:\n  inputs: [audio]\n  stages:\n{stages}  outputs: [score]\n"
        "samples: {calibration: {path: first.npz}, evaluation: {path: rest.npz}}\ntargets: [host]\n"
    )
    return path


def make_sources(count: int) -> list[Array]:
    """Inputs of the encoder, of several lengths."""
    random = np.random.default_rng(11)
    return [
        random.standard_normal((1, 3 + number % 4, 8)).astype(np.float32) for number in range(count)
    ]


def write_translation_project(folder: Path, *, most: int = 12, recipes: str = "fp32") -> Path:
    """Write a project of an encoder and a decoder with a cache, and return its file.

    The decoder's variants have the recipes. The samples are the first eight of
    :func:`make_sources`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_encoder(folder / "encoder.onnx")
    write_decoder(folder / "decoder.onnx")
    parts = write_part(folder, "encoder"), write_part(folder, "decoder", recipes)
    (folder / "mysamples.py").write_text(
        "import numpy as np\n\n\ndef sources():\n    random = np.random.default_rng(11)\n"
        "    for number in range(8):\n        shape = (1, 3 + number % 4, 8)\n"
        "        yield {'source': random.standard_normal(shape).astype(np.float32)}\n"
    )
    path = folder / "edgepack.yaml"
    path.write_text(
        "schema_version: 1\nname: translation\n"
        f"models: {{encoder: {parts[0]}, decoder: {parts[1]}}}\n"
        "pipeline:\n  inputs: [source]\n  stages:\n    - run: encoder\n    - decode: decoder\n"
        "      token: token\n      position: position\n      logits: logits\n"
        f"      start: {START}\n      end: {END}\n      most: {most}\n"
        "      past: {present.*: past.*}\n"
        "  outputs: [tokens]\nsamples: {calibration: {python: 'mysamples:sources'}}\n"
        "targets: [host]\n"
    )
    return path


SEEN, CELL, PIECE = 64, 16, 16
"""Sides in pixels: of the detector's input, of its cells, and of the classifier's input."""
COLOURS = ("red", "blue")
STRIPES = ("upright", "level")


def write_finder(path: Path) -> Path:
    """``image`` [1, 3, 64, 64] to ``output0`` [1, 6, 16]: a box for each cell, by where it shines.

    Its centre and size are those of a rectangle with the same moments; the scores are how much red
    and how much blue there is.
    """
    node = helper.make_node
    side = np.arange(CELL) - (CELL - 1) / 2
    across, down = np.meshgrid(side, side)
    moments = [np.ones_like(across), across, down, across**2, down**2]
    kernels = [np.stack([each] * 3) / CELL**2 for each in moments]
    for channel in (0, 2):
        kernels.append(np.zeros((3, CELL, CELL)))
        kernels[-1][channel] = 1 / CELL**2
    corners = np.arange(0, SEEN, CELL) + CELL / 2
    places = [each.reshape(1, 1, -1) for each in np.meshgrid(corners, corners)]
    nodes = [
        node("Conv", ["image", "kernels"], ["cells"], "cells", strides=[CELL, CELL]),
        node("Reshape", ["cells", "flat"], ["rows"], "rows"),
        node("Split", ["rows", "parts"], ["sum", "first", "second", "colours"], "split", axis=1),
        node("Add", ["sum", "little"], ["some"], "some"),
        node("Div", ["first", "some"], ["mean"], "mean"),
        node("Div", ["second", "some"], ["square"], "square"),
        node("Mul", ["mean", "mean"], ["mean2"], "mean2"),
        node("Sub", ["square", "mean2"], ["spread"], "spread"),
        node("Mul", ["spread", "twelve"], ["spread12"], "spread12"),
        node("Add", ["spread12", "one"], ["size2"], "size2"),
        node("Sqrt", ["size2"], ["size"], "size"),
        node("Add", ["mean", "places"], ["centre"], "centre"),
        node("Mul", ["colours", "gain"], ["gained"], "gained"),
        node("Tanh", ["gained"], ["scores"], "scores"),
        node("Concat", ["centre", "size", "scores"], ["output0"], "output", axis=1),
    ]
    cells = (SEEN // CELL) ** 2
    weights = {
        "kernels": np.stack(kernels).astype(np.float32),
        "flat": np.array([1, len(kernels), cells]),
        "parts": np.array([1, 2, 2, 2]),
        "little": np.float32([1e-3]),
        "twelve": np.float32([12]),
        "one": np.float32([1]),
        "gain": np.float32([6]),
        "places": np.concatenate(places, axis=1).astype(np.float32),
    }
    inputs = [("image", FLOAT, [1, 3, SEEN, SEEN])]
    return save(path, nodes, inputs, [("output0", FLOAT, [1, 6, cells])], list(weights.items()))


def write_stripes(path: Path) -> Path:
    """``piece`` [batch, 3, 16, 16] to ``stripes`` [batch, 2]: edges across, and edges down."""
    node = helper.make_node
    kernels = np.zeros((4, 3, 2, 2), np.float32)
    for number, sign in enumerate((-1, 1)):
        kernels[number, :, 0], kernels[2 + number, :, :, 0] = (sign, -sign), (sign, -sign)
    nodes = [
        node("Conv", ["piece", "kernels"], ["edges"], "edges"),
        node("Relu", ["edges"], ["sizes"], "sizes"),
        node("GlobalAveragePool", ["sizes"], ["means"], "means"),
        node("Flatten", ["means"], ["flat"], "flat"),
        node("MatMul", ["flat", "both"], ["stripes"], "stripes"),
    ]
    both = np.float32([[1, 0], [1, 0], [0, 1], [0, 1]])
    inputs = [("piece", FLOAT, ["batch", 3, PIECE, PIECE])]
    outputs = [("stripes", FLOAT, ["batch", 2])]
    return save(path, nodes, inputs, outputs, [("kernels", kernels), ("both", both)])


def draw_objects(
    count: int, seed: int = 0, *, most: int = 3
) -> tuple[Array, list[list[tuple[int, int, tuple[int, ...]]]]]:
    """Return pictures (count, 96, 128, 3), and of each its objects: colour, stripes and box.

    Every fourth picture is empty.
    """
    random = np.random.default_rng(seed)
    pictures = np.zeros((count, 96, 128, 3), np.uint8)
    drawn: list[list[tuple[int, int, tuple[int, ...]]]] = []
    for number, picture in enumerate(pictures):
        drawn.append([])
        for cell in random.choice(8, int(random.integers(1, most + 1)), replace=False):
            if number % 4 == 3:
                continue
            width, height = (int(side) for side in random.integers(17, 28, 2))
            left = int(32 * (cell % 4) + random.integers(1, 32 - width))
            top = int(16 + 32 * (cell // 4) + random.integers(1, 32 - height))
            colour, stripes = (int(each) for each in random.integers(0, 2, 2))
            down, across = np.mgrid[:height, :width]
            lit = (down if stripes else across) // 4 % 2 == 0
            shown = np.where(lit, random.integers(200, 255), 90)
            picture[top : top + height, left : left + width, 2 * colour] = shown
            drawn[-1].append((colour, stripes, (left, top, left + width, top + height)))
    return pictures, drawn


FIND_STAGES = (
    "    - {run: finder, inputs: {image: picture}, outputs: {output0: found}}\n"
    "    - {crop: stripes, picture: picture, boxes: found, most: 8}\n"
)


def write_find_project(folder: Path, *, recipes: str = "fp32", stages: str = FIND_STAGES) -> Path:
    """Write a project of a detector and a classifier of what it finds, and return its file.

    The classifier's variants have the recipes. The samples are pictures of :func:`draw_objects`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_finder(folder / "finder.onnx")
    write_stripes(folder / "stripes.onnx")
    (folder / "colours.txt").write_text("\n".join(COLOURS) + "\n")
    (folder / "kinds.txt").write_text("\n".join(STRIPES) + "\n")
    parts = (
        write_part(
            folder,
            "finder",
            more="files: [colours.txt]\ninputs: {image: {image: {resize: {letterbox: 64, pad: 0},"
            " scale: 0.00392157}}}\noutputs: {output0: {kind: detection, layout: yolo, labels:"
            " colours.txt, score: 0.4}}\n",
        ),
        write_part(
            folder,
            "stripes",
            recipes,
            "files: [kinds.txt]\ndims: {batch: 1}\ninputs: {piece: {image: {resize: {width:"
            " 16, height: 16}, scale: 0.00392157}}}\noutputs: {stripes: {kind: classification,"
            " labels: kinds.txt, top: 1}}\n",
        ),
    )
    pictures = draw_objects(24)[0]
    np.savez(folder / "first.npz", picture=pictures[:16])
    np.savez(folder / "rest.npz", picture=pictures[16:])
    path = folder / "edgepack.yaml"
    path.write_text(
        "schema_version: 1\nname: find\n"
        f"models: {{finder: {parts[0]}, stripes: {parts[1]}}}\n"
        f"pipeline:\n  inputs: [picture]\n  stages:\n{stages}  outputs: [objects, stripes]\n"
        "samples: {calibration: {path: first.npz}, evaluation: {path: rest.npz}}\ntargets: [host]\n"
    )
    return path
