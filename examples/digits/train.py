"""Train a small CNN on scikit-learn's handwritten digits, and write what edgepack needs.

Writes ``digits.onnx``, ``calibration.npz`` and ``evaluation.npz``. With the versions in
``requirements.txt``, two runs on one machine write the same bytes. Another kind of processor
rounds differently, so its weights, and perhaps its accuracy, differ slightly.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

SEED = 0
EPOCHS = 30
BATCH_SIZE = 32
EVALUATION_SAMPLES = 360
CALIBRATION_SAMPLES = 200


class Samples(NamedTuple):
    """Images, (N, 1, 8, 8) float32 in [0, 1] (NCHW), and the digit that each shows, (N,) int64."""

    images: np.ndarray
    labels: np.ndarray


def read_samples() -> Samples:
    """Return all 1797 digits that ship with scikit-learn, with pixels 0..16 scaled to 0..1."""
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)
    return Samples(images[:, np.newaxis], digits.target.astype(np.int64))


def split(samples: Samples, size: int) -> tuple[Samples, Samples]:
    """Return ``size`` samples, drawn with every digit in proportion, and those that are left."""
    left, drawn = train_test_split(
        np.arange(len(samples.labels)), test_size=size, stratify=samples.labels, random_state=SEED
    )
    return (
        Samples(samples.images[drawn], samples.labels[drawn]),
        Samples(samples.images[left], samples.labels[left]),
    )


def make_network() -> nn.Module:
    """Return the untrained network: (N, 1, 8, 8) images to (N, 10) logits.

    The convolutions are this wide so that int8 pays: in narrower ones, converting to int8
    and back takes the time that the int8 arithmetic saves.
    """
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(64 * 4 * 4, 10),
    )


def train(network: nn.Module, samples: Samples) -> None:
    """Fit the network in place, for a fixed number of epochs."""
    images, labels = torch.from_numpy(samples.images), torch.from_numpy(samples.labels)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    network.train()
    for epoch in range(EPOCHS):
        total_loss = 0.0
        for batch in torch.randperm(len(labels)).split(BATCH_SIZE):
            loss = nn.functional.cross_entropy(network(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total_loss += loss.item() * len(batch)
        print(f"epoch {epoch + 1:2}/{EPOCHS}  loss {total_loss / len(labels):.4f}")


def write_onnx(network: nn.Module, path: Path) -> None:
    """Write the network with input ``image``, output ``logits`` and a symbolic ``batch``."""
    torch.onnx.export(
        network.eval(),
        (torch.zeros(1, 1, 8, 8),),
        path,
        input_names=["image"],
        output_names=["logits"],
        dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
        opset_version=17,
        # The newer exporter writes stack traces, with this machine's paths, into the file.
        dynamo=False,
    )


def measure_top1(model: Path, samples: Samples) -> float:
    """Return the share of samples that the written file, run by onnxruntime, gets right."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"image": samples.images})
    return float((logits.argmax(axis=1) == samples.labels).mean())


def main() -> None:
    """Train, write the three files, and print the accuracy of the written model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="default: here")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(mode=True)
    torch.set_num_threads(1)  # several threads add numbers in a varying order

    evaluation, training = split(read_samples(), EVALUATION_SAMPLES)
    # Calibration uses no image of the evaluation.
    calibration, _ = split(training, CALIBRATION_SAMPLES)
    network = make_network()
    train(network, training)

    write_onnx(network, out / "digits.onnx")
    # np.savez gives every member the same fixed date, so equal arrays are equal files.
    np.savez(out / "calibration.npz", image=calibration.images)
    np.savez(out / "evaluation.npz", image=evaluation.images, labels=evaluation.labels)
    top1 = measure_top1(out / "digits.onnx", evaluation)
    print(f"top-1 {top1:.4f} on {len(evaluation.labels)} held-out samples")


if __name__ == "__main__":
    main()
