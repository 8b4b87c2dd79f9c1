"""Bundles as they lie on disk: ``manifest.json`` read with json, tensors with numpy."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.proofs.cases import Feed
from tests.proofs.net import Array
from tests.proofs.running import Collected

_ACCURACY = re.compile(r"no better than a constant|drops by|dB from fp32|loses|R²|noise")
"""In the reason of a variant that is left out because of what it says, not of where it runs."""


@dataclass(frozen=True)
class Variant:
    """A variant of a bundle."""

    target: str
    bundle: Path
    entry: dict[str, Any]

    @property
    def id(self) -> str:
        """With the target, for people."""
        return f"{self.target} {self.entry['id']}"

    @property
    def model(self) -> Path:
        """The model file."""
        return self.bundle / self.entry["model"]

    @property
    def not_judged(self) -> str:
        """Why this machine's CPU cannot stand in for the variant, or nothing."""
        if self.entry.get("model_format", "onnx") != "onnx":
            return "an .ort file for another processor"
        return "a model for each of several sizes" if self.entry.get("buckets") else ""

    @property
    def is_quantized(self) -> bool:
        """Whether its numbers are integers."""
        return self.entry["recipe"].startswith("int")

    def claimed_loss(self, output: str) -> float | None:
        """Return how many points the manifest says may be lost of an output; None if nothing.

        Of class scores by the share with fp32's best class, of others by R² and of integers by the
        metric, each at the far end of its interval.
        """
        accuracy = self.entry["accuracy"]
        if "metric" not in accuracy or accuracy.get("drop") is None:
            return None
        if accuracy.get("agreement") is not None and output not in accuracy["r2"]:
            lost = 1 - accuracy["agreement"] + 3 / accuracy["samples"]
        elif output in accuracy["r2"]:
            lost = 1 - accuracy["r2"][output]["low"]
        else:
            lost = (accuracy["drop_interval"] or [0, accuracy["drop"]])[1]
        return 100 * float(lost)

    def claimed_r2(self, output: str) -> float | None:
        """Return the lower end of the interval that the manifest gives for R²; None without one."""
        claimed = self.entry["accuracy"].get("r2", {}).get(output)
        return None if claimed is None else float(claimed["low"])

    @property
    def claim(self) -> str:
        """What the manifest says of the variant's accuracy, as a line."""
        accuracy = self.entry["accuracy"]
        if "metric" not in accuracy:
            return f"not measured: {accuracy['reason']}"
        r2 = ", ".join(f"R² {v['value']:.3f} of {n}" for n, v in accuracy["r2"].items())
        found = f"{accuracy['metric']} {accuracy['value']:.3f} on {accuracy['samples']} samples"
        return f"{found}; {r2 or 'no R²'}"


class Wanted(NamedTuple):
    """What a golden output has to reach, and of which of its values."""

    sqnr_db: list[float]
    """By quantity."""
    stride: int
    """Every so many-th value is there."""
    of_channel: list[int]
    """The number of each channel's quantity."""
    size: int
    """Values of a channel that lie behind each other."""

    def quantity(self, count: int) -> Array:
        """Return the number of the quantity of each of so many values."""
        places = np.arange(count) * self.stride
        return np.array(self.of_channel)[places // self.size % len(self.of_channel)]


@dataclass(frozen=True)
class Bundle:
    """A folder that a build wrote."""

    path: Path
    manifest: dict[str, Any]

    @property
    def variants(self) -> list[Variant]:
        """In order of preference."""
        target = self.manifest["target"]
        return [Variant(target, self.path, entry) for entry in self.manifest["variants"]]

    @property
    def unused(self) -> list[tuple[str, str]]:
        """Variants that are not there, each with the reason."""
        return [(each["variant"], each["reason"]) for each in self.manifest["unused"]]

    def goldens(self, variant: str) -> list[tuple[Feed, Feed, dict[str, Wanted]]]:
        """Return inputs, outputs and what is wanted of each output, for each sample."""
        entry = next(e for e in self.manifest["variants"] if e["id"] == variant)
        found = []
        for golden in self.manifest["goldens"]:
            outputs = golden["outputs"][variant]
            wanted = {each["name"]: _wanted(entry["min_sqnr_db"], each) for each in outputs}
            found.append((self._tensors(golden["inputs"]), self._tensors(outputs), wanted))
        return found

    def _tensors(self, entries: list[dict[str, Any]]) -> Feed:
        return {
            e["name"]: np.fromfile(self.path / e["path"], e["dtype"]).reshape(
                e["shape"] if e.get("stride", 1) == 1 else -1
            )
            for e in entries
        }


def _wanted(limit_db: float, entry: dict[str, Any]) -> Wanted:
    one = {"size": 1, "runs": [[1, 0]], "extra_db": [entry.get("extra_db", 0.0)]}
    several = entry.get("quantities") or one
    of_channel = [number for count, number in several["runs"] for _ in range(count)]
    needed = [limit_db + extra for extra in several["extra_db"]]
    return Wanted(needed, entry.get("stride", 1), of_channel, several["size"])


def read_bundle(path: Path) -> Bundle:
    """Read a bundle's folder."""
    return Bundle(path, json.loads((path / "manifest.json").read_text(encoding="utf-8")))


def is_about_accuracy(reason: str) -> bool:
    """Say whether a variant is left out because of what it says."""
    return _ACCURACY.search(reason) is not None


def sqnr_db(reference: Array, output: Array) -> float:
    """Return the signal to noise ratio about zero; of integers, 200 where 99 in 100 are equal."""
    if reference.shape != output.shape:
        return -np.inf
    if reference.dtype.kind != "f":
        return 200.0 if np.mean(reference == output) >= 0.99 else -np.inf
    ref, out = reference.astype(np.float64), output.astype(np.float64)
    noise = float(((ref - out) ** 2).sum())
    if noise == 0:
        return 200.0
    signal = float((ref**2).sum())
    return 10 * np.log10(signal / noise) if signal > 0 and np.isfinite(noise) else -np.inf


def meets_goldens(goldens: list[tuple[Feed, Feed, dict[str, Wanted]]], outputs: Collected) -> bool:
    """Say whether outputs for all golden inputs are as near as they have to be."""
    return all(
        is_met(expected[name], outputs[name][k], limit)
        for k, (_, expected, wanted) in enumerate(goldens)
        for name, limit in wanted.items()
    )


def is_met(expected: Array, output: Array, wanted: Wanted) -> bool:
    """Say whether one output is as near as it has to be; equal values always are."""
    some = output if wanted.stride == 1 else output.reshape(-1)[:: wanted.stride]
    if some.size != expected.size:
        return False
    some, expected = some.reshape(-1), expected.reshape(-1)
    quantity = wanted.quantity(expected.size)
    return all(
        bool(sqnr_db(expected[quantity == n], some[quantity == n]) >= min(needed, 200.0))
        for n, needed in enumerate(wanted.sqnr_db)
    )
