"""Train a small transformer that tells what a sentence wants, and write what edgepack needs.

Writes ``commands.onnx``, ``tokenizer.json``, ``labels.txt``, ``calibration.npz``,
``evaluation.npz`` and ``evaluation.csv``. Two runs on one machine write the same bytes; another
kind of processor rounds differently.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import numpy as np
import onnx
from autograd import grad
from onnx import TensorProto, helper, numpy_helper
from sentences import TRAINING, Sentence, draw_training, list_evaluation

SEED = 0
STEPS = 700
BATCH = 48
LENGTH = 16
WIDTH, HEADS, INNER, LAYERS = 64, 4, 128, 2
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
ENDINGS = ("##s", "##ing", "##er", "##ed", "##est", "##y")
CALIBRATION = 96
EVALUATION_EACH = 20
FORGET = 0.2
"""The share of words that training replaces by an unknown one, so that new words do no harm."""

Weights = dict[str, Any]


def make_vocabulary() -> list[str]:
    """Return special tokens, letters, endings, and the words that the training has often."""
    counts = Counter(w for s in draw_training(4000, SEED) for w in s.text.split())
    words = sorted(word for word, count in counts.items() if count > 3 and len(word) > 1)
    return [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), *ENDINGS, *words]


def split_word(word: str, numbers: dict[str, int]) -> list[int]:
    """Return the pieces of a word of letters: always the longest that the vocabulary has."""
    pieces, begin = [], 0
    while begin < len(word):
        ends = range(len(word), begin, -1)
        names = (("##" if begin else "") + word[begin:end] for end in ends)
        end, name = next((e, n) for e, n in zip(ends, names, strict=True) if n in numbers)
        pieces.append(numbers[name])
        begin = end
    return pieces


def make_inputs(texts: list[str], vocabulary: list[str]) -> dict[str, np.ndarray]:
    """Return ids and mask of texts, both (texts, 16) int64, as the tokenizer makes them."""
    numbers = {word: n for n, word in enumerate(vocabulary)}
    ids = np.zeros((len(texts), LENGTH), np.int64)
    for row, text in enumerate(texts):
        pieces = [piece for word in text.split() for piece in split_word(word, numbers)]
        found = [numbers["[CLS]"], *pieces[: LENGTH - 2], numbers["[SEP]"]]
        ids[row, : len(found)] = found
    return {"input_ids": ids, "attention_mask": (ids != 0).astype(np.int64)}


def make_weights(words: int, classes: int) -> Weights:
    """Return the untrained weights."""
    drawn = np.random.default_rng(SEED)

    def dense(*shape: int) -> np.ndarray:
        return drawn.standard_normal(shape) / np.sqrt(shape[0])

    weights: Weights = {
        "words": 0.3 * drawn.standard_normal((words, WIDTH)),
        "places": 0.3 * drawn.standard_normal((LENGTH, WIDTH)),
        "head.weight": dense(WIDTH, classes),
        "head.bias": np.zeros(classes),
    }
    for layer in range(LAYERS):
        sizes = dict.fromkeys(("q", "k", "v", "out"), (WIDTH, WIDTH))
        sizes |= {"up": (WIDTH, INNER), "down": (INNER, WIDTH)}
        for name, size in sizes.items():
            weights[f"{layer}.{name}.weight"] = dense(*size)
            weights[f"{layer}.{name}.bias"] = np.zeros(size[1])
    for name in ["begin", *(f"{n}.{k}" for n in range(LAYERS) for k in ("middle", "end"))]:
        weights[f"{name}.gamma"], weights[f"{name}.beta"] = np.ones(WIDTH), np.zeros(WIDTH)
    return weights


def compute_logits(w: Weights, ids: np.ndarray, mask: np.ndarray) -> Any:
    """Return (texts, classes); what :func:`write_onnx` writes computes the same."""

    def linear(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    def norm(x: Any, name: str) -> Any:
        off = x - x.mean(-1, keepdims=True)
        deviation = anp.sqrt((off**2).mean(-1, keepdims=True) + 1e-5)
        return off / deviation * w[f"{name}.gamma"] + w[f"{name}.beta"]

    def heads(x: Any) -> Any:
        return x.reshape(len(ids), LENGTH, HEADS, WIDTH // HEADS).transpose((0, 2, 1, 3))

    hidden = (1.0 - mask)[:, None, None, :] * -10000.0
    x = norm(w["words"][ids] + w["places"], "begin")
    for layer in range(LAYERS):
        q, k, v = (heads(linear(x, f"{layer}.{part}")) for part in "qkv")
        dots = q @ k.transpose((0, 1, 3, 2)) / np.sqrt(WIDTH // HEADS) + hidden
        shares = anp.exp(dots - dots.max(-1, keepdims=True))
        shares = shares / shares.sum(-1, keepdims=True)
        context = (shares @ v).transpose((0, 2, 1, 3)).reshape(len(ids), LENGTH, WIDTH)
        x = norm(x + linear(context, f"{layer}.out"), f"{layer}.middle")
        up = linear(x, f"{layer}.up")
        # Gelu by a tanh here, for autograd; the written model has the exact one.
        gelu = 0.5 * up * (1 + anp.tanh(0.7978845608 * (up + 0.044715 * up**3)))
        x = norm(x + linear(gelu, f"{layer}.down"), f"{layer}.end")
    mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return linear(mean, "head")


def train(weights: Weights, sentences: list[Sentence], vocabulary: list[str]) -> Weights:
    """Return the weights after a step of Adam for each batch of sentences."""
    drawn = np.random.default_rng(SEED + 1)
    unknown = vocabulary.index("[UNK]")

    def compute_loss(w: Weights, ids: np.ndarray, mask: np.ndarray, labels: np.ndarray) -> Any:
        logits = compute_logits(w, ids, mask)
        top = logits.max(-1, keepdims=True)
        scale = anp.log(anp.exp(logits - top).sum(-1)) + top[:, 0]
        return (scale - logits[np.arange(len(labels)), labels]).mean()

    first = {name: np.zeros_like(each) for name, each in weights.items()}
    second = {name: np.zeros_like(each) for name, each in weights.items()}
    compute_gradient = grad(compute_loss)
    for step in range(1, STEPS + 1):
        batch = sentences[(step - 1) * BATCH : step * BATCH]
        inputs = make_inputs([s.text for s in batch], vocabulary)
        ids, mask = inputs["input_ids"], inputs["attention_mask"].astype(np.float64)
        forgotten = (drawn.random(ids.shape) < FORGET) & (ids >= len(SPECIAL))
        labels = np.array([s.label for s in batch])
        gradient = compute_gradient(weights, np.where(forgotten, unknown, ids), mask, labels)
        rate = 3e-3 * min(1.0, step / 100) * (1 - step / (STEPS + 1))
        for name, each in gradient.items():
            first[name] = 0.9 * first[name] + 0.1 * each
            second[name] = 0.99 * second[name] + 0.01 * each**2
            mean, square = first[name] / (1 - 0.9**step), second[name] / (1 - 0.99**step)
            weights[name] = weights[name] - rate * mean / (np.sqrt(square) + 1e-8)
        if step % 100 == 0:
            loss = compute_loss(weights, ids, mask, labels)
            print(f"step {step:4}/{STEPS}  loss {loss:.4f}")
    return weights


class Writer:
    """Collects the nodes of the ONNX model, in the order in which exporters write attention."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node with one output; return that output's name."""
        self.nodes.append(helper.make_node(op, inputs, [output], f"/{output}", **attributes))
        return output

    def constant(self, name: str, values: Any) -> str:
        """Add a constant, integers as int64 and others as float32; return its name."""
        array = np.asarray(values)
        kind = np.int64 if array.dtype.kind == "i" else np.float32
        self.constants[name] = numpy_helper.from_array(array.astype(kind), name)
        return name

    def weight(self, name: str) -> str:
        """Add a weight; return its name."""
        return self.constant(name, self.weights[name])

    def linear(self, x: str, name: str) -> str:
        """Add ``x @ weight + bias``."""
        product = self.add("MatMul", [x, self.weight(f"{name}.weight")], f"{name}.product")
        return self.add("Add", [product, self.weight(f"{name}.bias")], name)

    def norm(self, x: str, name: str) -> str:
        """Add a LayerNormalization."""
        given = [x, self.weight(f"{name}.gamma"), self.weight(f"{name}.beta")]
        return self.add("LayerNormalization", given, name, axis=-1, epsilon=1e-5)

    def layer(self, x: str, n: int) -> str:
        """Add attention and what follows it."""
        size = self.constant("heads", [0, 0, HEADS, WIDTH // HEADS])
        turned = {"q": [0, 2, 1, 3], "k": [0, 2, 3, 1], "v": [0, 2, 1, 3]}
        for part, order in turned.items():
            split = self.add("Reshape", [self.linear(x, f"{n}.{part}"), size], f"{n}.{part}.split")
            self.add("Transpose", [split], f"{n}.{part}.heads", perm=order)
        dots = self.add("MatMul", [f"{n}.q.heads", f"{n}.k.heads"], f"{n}.dots")
        root = self.constant("root", np.sqrt(WIDTH // HEADS))
        scaled = self.add("Div", [dots, root], f"{n}.scaled")
        masked = self.add("Add", [scaled, "hidden"], f"{n}.masked")
        shares = self.add("Softmax", [masked], f"{n}.shares", axis=-1)
        context = self.add("MatMul", [shares, f"{n}.v.heads"], f"{n}.context")
        joined = self.add("Transpose", [context], f"{n}.joined", perm=[0, 2, 1, 3])
        flat = self.add("Reshape", [joined, self.constant("flat", [0, 0, WIDTH])], f"{n}.flat")
        summed = self.add("Add", [x, self.linear(flat, f"{n}.out")], f"{n}.sum")
        middle = self.norm(summed, f"{n}.middle")
        gelu = self.gelu(self.linear(middle, f"{n}.up"), f"{n}.gelu")
        total = self.add("Add", [middle, self.linear(gelu, f"{n}.down")], f"{n}.total")
        return self.norm(total, f"{n}.end")

    def gelu(self, x: str, name: str) -> str:
        """Add x * (1 + erf(x / sqrt 2)) / 2."""
        part = self.add("Div", [x, self.constant("root2", np.sqrt(2))], f"{name}.in")
        erf = self.add("Erf", [part], f"{name}.erf")
        share = self.add("Add", [erf, self.constant("one", 1.0)], f"{name}.share")
        twice = self.add("Mul", [x, share], f"{name}.twice")
        return self.add("Mul", [twice, self.constant("half", 0.5)], name)


def write_onnx(weights: Weights, classes: int, path: Path) -> None:
    """Write the model: ids and mask (batch, 16) int64 to ``logits`` (batch, classes) float32."""
    net = Writer(weights)
    net.add("Gather", [net.weight("words"), "input_ids"], "word", axis=0)
    net.add("Add", ["word", net.weight("places")], "placed")
    net.add("Unsqueeze", ["attention_mask", net.constant("1", [1])], "mask.3d")
    net.add("Unsqueeze", ["mask.3d", net.constant("2", [2])], "mask.4d")
    net.add("Cast", ["mask.4d"], "mask.float", to=TensorProto.FLOAT)
    net.add("Sub", [net.constant("one", 1.0), "mask.float"], "absent")
    net.add("Mul", ["absent", net.constant("never", -10000.0)], "hidden")
    x = net.norm("placed", "begin")
    for layer in range(LAYERS):
        x = net.layer(x, layer)
    net.add("Cast", ["attention_mask"], "mask", to=TensorProto.FLOAT)
    net.add("Unsqueeze", ["mask", "2"], "present")
    net.add("Mul", [x, "present"], "kept")
    net.add("ReduceSum", ["kept", "1"], "total", keepdims=0)
    net.add("ReduceSum", ["present", "1"], "count", keepdims=0)
    net.add("Div", ["total", "count"], "mean")
    net.add("MatMul", ["mean", net.weight("head.weight")], "head.product")
    net.add("Add", ["head.product", net.weight("head.bias")], "logits")
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        net.nodes,
        "commands",
        [tensor(n, TensorProto.INT64, ["batch", LENGTH]) for n in ("input_ids", "attention_mask")],
        [tensor("logits", TensorProto.FLOAT, ["batch", classes])],
        list(net.constants.values()),
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="train.py"
    )
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def write_tokenizer(vocabulary: list[str], path: Path) -> None:
    """Write the tokenizer in the form of Hugging Face's library: BERT's, in lower case."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    numbers = {word: n for n, word in enumerate(vocabulary)}
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": numbers[word], "content": word, "special": True, **flags} for word in SPECIAL
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "BertProcessing",
            "sep": ["[SEP]", numbers["[SEP]"]],
            "cls": ["[CLS]", numbers["[CLS]"]],
        },
        "decoder": None,
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": numbers,
        },
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def write_samples(sentences: list[Sentence], vocabulary: list[str], out: Path) -> None:
    """Write the samples, those of the evaluation with labels and as readable text too."""
    names = list(TRAINING)
    calibration = [s.text for s in draw_training(CALIBRATION, SEED + 2)]
    # np.savez gives every member the same fixed date, so equal arrays are equal files.
    np.savez(out / "calibration.npz", **make_inputs(calibration, vocabulary))
    labels = np.array([s.label for s in sentences])
    inputs = make_inputs([s.text for s in sentences], vocabulary)
    np.savez(out / "evaluation.npz", **inputs, labels=labels)
    with (out / "evaluation.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerows((s.text, names[s.label]) for s in sentences)


def measure_top1(model: Path, evaluation: Path) -> float:
    """Return the share of sentences that the written file, run by onnxruntime, gets right."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with np.load(evaluation) as samples:
        given = {name: samples[name] for name in ("input_ids", "attention_mask")}
        (logits,) = session.run(["logits"], given)
        return float((logits.argmax(axis=1) == samples["labels"]).mean())


def main() -> None:
    """Train, write the files, and print the accuracy of the written model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="default: here")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    vocabulary, classes = make_vocabulary(), len(TRAINING)
    training = draw_training(STEPS * BATCH, SEED)
    sentences = list_evaluation(SEED + 3, EVALUATION_EACH, {s.text for s in training})
    weights = train(make_weights(len(vocabulary), classes), training, vocabulary)
    write_onnx(weights, classes, out / "commands.onnx")
    write_tokenizer(vocabulary, out / "tokenizer.json")
    (out / "labels.txt").write_text("".join(f"{name}\n" for name in TRAINING), encoding="utf-8")
    write_samples(sentences, vocabulary, out)
    top1 = measure_top1(out / "commands.onnx", out / "evaluation.npz")
    print(f"top-1 {top1:.4f} on {len(sentences)} sentences of other patterns")


if __name__ == "__main__":
    main()
