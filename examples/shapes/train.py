"""Train a small detector of drawn shapes, and write what edgepack needs.

Writes ``shapes.onnx``, and drawn pictures with YOLO's label files in ``calibration/`` and
``evaluation/``. With the versions in
``requirements.txt``, two runs on one machine write the same bytes. Another kind of processor rounds
differently, so its weights, and perhaps its accuracy, differ slightly.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from drawing import LABELS, Drawing, draw, write_pictures
from PIL import Image
from torch import nn
from torch.nn import functional

SEED = 0
SIDE = 160
STRIDES = (8, 16)
LARGEST = 64
"""Pixels: larger shapes belong to the coarser grid."""
STEPS = 2500
BATCH_SIZE = 32
CALIBRATION_PICTURES = 48
EVALUATION_PICTURES = 96


class Detector(nn.Module):
    """Pictures ``(B, 3, 160, 160)``, RGB from 0 to 1, to ``(B, 4 + 3, 500)``.

    A column is a box, centre, width and height in pixels, and a probability per class: the layout
    ``yolo``. There is one for each place of a grid of 20 x 20, and of one of 10 x 10.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            _make_layer(3, 12, 2), _make_layer(12, 24, 2), _make_layer(24, 24)
        )
        self.fine = nn.Sequential(_make_layer(24, 40, 2), _make_layer(40, 40), _make_layer(40, 40))
        self.coarse = nn.Sequential(
            _make_layer(40, 56, 2), _make_layer(56, 56), _make_layer(56, 56)
        )
        self.heads = nn.ModuleList(nn.Conv2d(width, 4 + len(LABELS), 1) for width in (40, 56))
        for head in self.heads:
            nn.init.constant_(head.bias[4:], -4.0)  # at first nearly nothing is a shape

    def find(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return edges ``(B, 4, 500)`` in pixels, and logits ``(B, 3, 500)``."""
        fine = self.fine(self.stem(pictures))
        edges, logits = [], []
        for features, head, stride in zip(
            (fine, self.coarse(fine)), self.heads, STRIDES, strict=True
        ):
            found = head(features).flatten(2)
            reach = functional.softplus(found[:, :4]) * stride
            at = make_centres(stride).T
            edges.append(torch.cat([at - reach[:, :2], at + reach[:, 2:]], dim=1))
            logits.append(found[:, 4:])
        return torch.cat(edges, dim=2), torch.cat(logits, dim=2)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Return boxes and probabilities ``(B, 7, 500)``."""
        edges, logits = self.find(pictures)
        centre, size = (edges[:, :2] + edges[:, 2:]) / 2, edges[:, 2:] - edges[:, :2]
        return torch.cat([centre, size, logits.sigmoid()], dim=1)


def _make_layer(before: int, after: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()
    )


def make_centres(stride: int) -> torch.Tensor:
    """Return the middle of each place of a grid ``(N, 2)``, x and y in pixels, row by row."""
    middle = (torch.arange(SIDE // stride) + 0.5) * stride
    y, x = torch.meshgrid(middle, middle, indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], dim=1)


def make_targets(boxes: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return for each place its class ``(500,)``, -1 for none, and edges ``(500, 4)`` in pixels."""
    classes, edges = [], []
    for stride in STRIDES:
        at = make_centres(stride)
        kinds = torch.full((len(at),), -1)
        wanted = torch.zeros(len(at), 4)
        for kind, *box in boxes.tolist():
            size = max(box[2] - box[0], box[3] - box[1])
            if (size > LARGEST) != (stride == STRIDES[-1]):
                continue
            middle = torch.tensor([(box[0] + box[2]) / 2, (box[1] + box[3]) / 2])
            near = (at - middle).abs().amax(dim=1) <= max(stride * 0.75, size / 6)
            kinds[near], wanted[near] = int(kind), torch.tensor(box)
        classes.append(kinds)
        edges.append(wanted)
    return torch.cat(classes), torch.cat(edges)


def _letterbox(drawing: Drawing) -> Drawing:
    """Fill up a wide picture to a square, as the bundle's preprocessing does."""
    top = (SIDE - drawing.picture.height) // 2
    square = Image.new("RGB", (SIDE, SIDE), (114, 114, 114))
    square.paste(drawing.picture, (0, top))
    return Drawing(square, drawing.boxes + np.array([0, 0, top, 0, top], np.float32))


def make_batch(rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return pictures ``(B, 3, 160, 160)``, classes ``(B, 500)`` and edges ``(B, 500, 4)``."""
    drawings = [_letterbox(draw(rng, SIDE, SIDE * 3 // 4)) for _ in range(BATCH_SIZE // 2)]
    drawings += [draw(rng, SIDE, SIDE) for _ in range(BATCH_SIZE - len(drawings))]
    pictures = np.stack([np.asarray(drawing.picture) for drawing in drawings])
    classes, edges = zip(*(make_targets(drawing.boxes) for drawing in drawings), strict=True)
    values = torch.from_numpy(pictures.astype(np.float32) / 255).permute(0, 3, 1, 2).contiguous()
    return values, torch.stack(classes), torch.stack(edges)


def train(network: Detector, steps: int) -> None:
    """Fit the network in place, on new pictures in each step."""
    rng = np.random.default_rng(SEED)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    network.train()
    for step in range(steps):
        pictures, classes, edges = make_batch(rng)
        loss = compute_loss(*network.find(pictures), classes, edges)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"step {step + 1:4}/{steps}  loss {loss.item():.3f}", flush=True)


def compute_loss(
    found: torch.Tensor, logits: torch.Tensor, classes: torch.Tensor, edges: torch.Tensor
) -> torch.Tensor:
    """Return the focal loss of all classes, and what boxes lack of intersection over union."""
    shapes = classes >= 0
    number = shapes.sum().clamp(min=1)
    one_hot = functional.one_hot(classes.clamp(min=0), len(LABELS)) * shapes.unsqueeze(2)
    target = one_hot.permute(0, 2, 1).float()
    entropy = functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
    miss = (logits.sigmoid() - target).abs()
    of_classes = (miss**2 * entropy).sum() / number
    ours, wanted = found.permute(0, 2, 1)[shapes], edges[shapes]
    inner = (torch.minimum(ours, wanted)[:, 2:] - torch.maximum(ours, wanted)[:, :2]).clamp(min=0)
    outer = (torch.maximum(ours, wanted)[:, 2:] - torch.minimum(ours, wanted)[:, :2]).clamp(min=0)
    both = inner.prod(dim=1)
    union = (
        (ours[:, 2:] - ours[:, :2]).prod(dim=1) + (wanted[:, 2:] - wanted[:, :2]).prod(dim=1) - both
    )
    hull = outer.prod(dim=1)
    generalized = both / union - (hull - union) / hull
    return of_classes + (1 - generalized).sum() / number


def write_onnx(network: nn.Module, path: Path) -> None:
    """Write the network with input ``images``, output ``boxes`` and a batch of one."""
    torch.onnx.export(
        network.eval(),
        (torch.zeros(1, 3, SIDE, SIDE),),
        path,
        input_names=["images"],
        output_names=["boxes"],
        opset_version=17,
        # The newer exporter writes stack traces, with this machine's paths, into the file.
        dynamo=False,
    )


def main() -> None:
    """Train, and write the model and the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="default: here")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"default: {STEPS}")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(mode=True)
    torch.set_num_threads(1)  # several threads add numbers in a varying order

    network = Detector()
    train(network, asked.steps)
    write_onnx(network, asked.out / "shapes.onnx")
    # Other drawings than those of the training, which begin with another seed.
    write_pictures(np.random.default_rng(SEED + 1), asked.out / "calibration", CALIBRATION_PICTURES)
    write_pictures(np.random.default_rng(SEED + 2), asked.out / "evaluation", EVALUATION_PICTURES)


if __name__ == "__main__":
    main()
