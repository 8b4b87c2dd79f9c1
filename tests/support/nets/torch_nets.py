"""Small models of PyTorch; a project's module, and a program that saves them as ``.pt2``.

``python torch_nets.py FOLDER`` writes a ``.pt2`` for each of SAVED there. It runs in a Python with
torch, and knows nothing of edgepack.
"""

import pickle
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim


class ConvNet(nn.Module):
    """Convolutions with what mobile nets have: normalization, hard swish, a pooled classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish(),
            nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.ReLU6(), nn.Conv2d(8, 16, 1), nn.Hardswish(),
        )  # fmt: skip
        self.classifier = nn.Linear(16, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Return the scores of ten classes."""
        return self.classifier(self.features(image).mean((2, 3))).softmax(1)


class Encoder(nn.Module):
    """A transformer's encoder with embeddings, positions and a mask of what is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.positions = nn.Parameter(torch.randn(64, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return a vector for each text."""
        x = self.embedding(ids) + self.positions[: ids.shape[1]]
        x = self.encoder(x, src_key_padding_mask=mask == 0) * mask.unsqueeze(2)
        return x.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


class Recurrent(nn.Module):
    """GRU and LSTM, a dict of inputs and a number, nested outputs, of which one is there twice."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 12, batch_first=True)
        self.lstm = nn.LSTM(12, 6, batch_first=True, bidirectional=True)

    def forward(self, batch: dict[str, Tensor], scale: float = 1.0) -> dict[str, object]:
        """Return what both give, and one of the inputs."""
        x, hidden = self.gru(batch["left"])
        y, _ = self.lstm(x + batch["right"] * scale)
        return {"out": y, "state": {"h": hidden}, "again": y, "left": batch["left"]}


class Stateful(nn.Module):
    """Adds up what it is given from run to run."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        """Return twice the sum of all inputs so far."""
        self.total.add_(x)
        return self.total * 2


@torch.library.custom_op("mylib::twist", mutates_args=())
def twist(x: Tensor) -> Tensor:
    """Do what no other framework knows."""
    return x.flip(0)


@twist.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Custom(nn.Module):
    """A module with an operator of its own."""

    def forward(self, x: Tensor) -> Tensor:
        """Return what the operator gives, twice."""
        return twist(x) + twist(x * 2)


def convnet():
    """Return a net with a free batch."""
    shapes = {"image": {0: Dim("batch", min=1, max=8)}}
    return ConvNet().eval(), (torch.randn(2, 3, 32, 32),), shapes


def encoder():
    """Return an encoder whose batch and length are free."""
    batch, length = Dim("batch", min=1, max=16), Dim("length", min=2, max=64)
    shapes = {"ids": {0: batch, 1: length}, "mask": {0: batch, 1: length}}
    ids, mask = torch.randint(0, 50, (2, 7)), torch.ones(2, 7, dtype=torch.int64)
    return Encoder().eval(), (ids, mask), shapes


def recurrent():
    """Return a net that takes a dict, and a number that becomes a constant."""
    batch = {"left": torch.randn(2, 5, 8), "right": torch.randn(2, 5, 12)}
    return Recurrent().eval(), (batch, 0.5)


def mobile():
    """Return torchvision's MobileNetV3, with random weights."""
    from torchvision.models import mobilenet_v3_small

    return mobilenet_v3_small(weights=None).eval(), (torch.randn(1, 3, 64, 64),)


def linear():
    """Return the smallest model, by names of inputs, and say so."""
    sys.stdout.write("making a linear layer\n")
    return nn.Linear(4, 3).eval(), {"input": torch.randn(2, 4)}


def stateful():
    """Return a module that keeps a sum."""
    return Stateful().eval(), (torch.randn(3),)


def custom():
    """Return a module that ONNX has no counterpart of."""
    return Custom().eval(), (torch.randn(3, 3),)


def training():
    """Return a module that drops values at random."""
    return nn.Sequential(nn.Linear(3, 3), nn.Dropout()), (torch.randn(1, 3),)


def number():
    """Return no model."""
    return 3


def raises():
    """Fail as a function does whose weights are not there."""
    raise FileNotFoundError("there are no weights in weights.pth")


def leaves():
    """End the process, as a script does."""
    sys.exit(0)


def hangs():
    """Take longer than anybody waits."""
    time.sleep(3600)


def fills():
    """Take more memory than there is."""
    return torch.ones(1 << 40)


SAVED = (convnet, encoder, recurrent, mobile, linear, stateful, custom)


class Hidden:
    """What runs code when it is unpickled, and reports by an error how far it came."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> tuple[object, tuple[str, dict[str, object]]]:
        """Return what unpickling calls."""
        return exec, (self.code, {})


def save_hidden(folder: Path, code: str) -> None:
    """Write pickles that run code: one as torch.save writes it, one as pickle does."""
    torch.save(Hidden(code), folder / "hidden.pt")
    (folder / "hidden.pkl").write_bytes(pickle.dumps(Hidden(code)))


def main() -> None:
    """Save all models in a folder, and with further arguments pickles that run code."""
    folder = Path(sys.argv[1])
    if len(sys.argv) > 2:
        save_hidden(folder, sys.argv[2])
        return
    torch.manual_seed(0)
    for make in SAVED:
        module, examples, *shapes = make()
        args, kwargs = ((), examples) if isinstance(examples, dict) else (examples, {})
        program = torch.export.export(module, args, kwargs, dynamic_shapes=(*shapes, None)[0])
        torch.export.save(program, folder / f"{make.__name__}.pt2")
    torch.save(Encoder().state_dict(), folder / "weights.pt")
    torch.jit.trace(nn.Linear(4, 3).eval(), torch.randn(2, 4)).save(str(folder / "script.pt"))


if __name__ == "__main__":
    main()
