"""Public models with public samples, where EDGEPACK_TEST_DATA names their folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tests.proofs.cases import CALIBRATION, EVALUATION, SAMPLES, Made, Zoo, feeds_of, split
from tests.proofs.net import Array
from tests.proofs.objects import Decoded, Objects
from tests.proofs.public import digits, line_of_text, photographs, shared, small_photographs, sound
from tests.proofs.readings import Classes, Mask, Probability, Signal
from tests.proofs.streams import streamed

zoo = Zoo("classes")
EVALUATED = slice(CALIBRATION, CALIBRATION + EVALUATION)


def _classifier(
    model: Path, name: str, images: Array, output: str, labels: Array | None = None
) -> Made:
    axis = 1 if "softmaxout" in output else -1
    made = Made(
        model, *split(feeds_of(**{name: images.astype(np.float32)})), {output: Classes(axis)}
    )
    made.labels = None if labels is None else labels[EVALUATED]
    return made


@zoo("linux-x86-64", "jetson")
def make_resnet20(folder: Path) -> Made:
    images, labels = small_photographs(SAMPLES)
    made = _classifier(
        shared("small/cifar10_resnet20_fp32_bn.onnx", folder), "input", images, "logits", labels
    )
    made.yaml = {"dims": {"batch": 1}}
    return made


@zoo("linux-x86-64", "raspberry-pi-xnnpack")
def make_mnist_cntk(folder: Path) -> Made:
    images, labels = digits(SAMPLES)
    model = shared("small/mnist-8_cntk_ir3.onnx", folder)
    return _classifier(model, "Input3", images[:, None], "Plus214_Output_0", labels)


@zoo("linux-x86-64", "raspberry-pi-acl")
def make_mnist_torch(folder: Path) -> Made:
    images, labels = digits(SAMPLES)
    model = shared("small/cnn_mnist_pytorch_opset9.onnx", folder)
    return _classifier(model, "0", (images[:, None] / 255 - 0.1307) / 0.3081, "21", labels)


@zoo("linux-x86-64", "raspberry-pi-acl", "android-qnn")
def make_mobilenet(folder: Path) -> Made:
    images = np.stack(photographs(SAMPLES, 128, short_side=146)) / 127.5 - 1
    model = shared("imagenet/mobilenet_v1_0.25_128_fp32.onnx", folder)
    made = _classifier(model, "input", images.transpose(0, 3, 1, 2), "output")
    made.yaml = {"dims": {"N": 1}}
    return made


@zoo("linux-x86-64")
def make_squeezenet(folder: Path) -> Made:
    images = np.stack(photographs(SAMPLES, 224, short_side=256))[..., ::-1] - [
        103.939,
        116.779,
        123.68,
    ]
    model = shared("imagenet/squeezenet1.1_fp32_opset13_dynbatch.onnx", folder)
    made = _classifier(model, "data_0", images.transpose(0, 3, 1, 2), "softmaxout_1")
    made.yaml = {"dims": {"N": 1}}
    return made


@zoo("linux-x86-64", "jetson", kind="detection")
def make_nanodet(folder: Path) -> Made:
    """Six heads: scores of 80 classes, and distances as distributions, at three strides."""
    images = np.stack(photographs(128, 320))[..., ::-1]
    given = ((images - [103.53, 116.28, 123.675]) / [57.375, 57.12, 58.395]).transpose(0, 3, 1, 2)
    feeds = feeds_of(**{"input.1": np.ascontiguousarray(given, np.float32)})

    def decode(outputs: Mapping[str, Array]) -> Decoded:
        boxes, scores = [], []
        for stride in (8, 16, 32):
            logits = outputs[f"dis_pred_stride_{stride}"][0].reshape(-1, 4, 8)
            shares = np.exp(logits - logits.max(-1, keepdims=True))
            sides = stride * (shares @ np.arange(8)) / shares.sum(-1)
            middle = _middles(320, 320, stride)
            boxes.append(np.concatenate([middle - sides[:, :2], middle + sides[:, 2:]], 1))
            scores.append(outputs[f"cls_pred_stride_{stride}"][0])
        return np.concatenate(boxes), np.concatenate(scores)

    model = shared("detection/nanodet_m_320.onnx", folder)
    return Made(model, feeds[:32], feeds[32:64], feeds[64:], objects=Objects(decode))


@zoo("linux-x86-64", "raspberry-pi-xnnpack", kind="detection")
def make_yunet(folder: Path) -> Made:
    """Faces: twelve heads, every dimension dynamic. Few of the photographs have a face."""
    given = np.stack(photographs(300, 256))[..., ::-1].transpose(0, 3, 1, 2).astype(np.float32)
    feeds = feeds_of(input=np.ascontiguousarray(given))

    def decode(outputs: Mapping[str, Array]) -> Decoded:
        boxes, scores = [], []
        for stride in (8, 16, 32):
            found = outputs[f"bbox_{stride}"][0]
            middle = (_middles(256, 256, stride) // stride + found[:, :2]) * stride
            size = np.exp(np.clip(found[:, 2:], -20, 20)) * stride
            boxes.append(np.concatenate([middle - size / 2, middle + size / 2], 1))
            both = np.clip(outputs[f"cls_{stride}"][0], 0, 1) * np.clip(
                outputs[f"obj_{stride}"][0], 0, 1
            )
            scores.append(np.sqrt(both))
        return np.concatenate(boxes), np.concatenate(scores)

    model = shared("detection/yunet_n_dynamic.onnx", folder)
    made = Made(model, feeds[:48], feeds[48:112], feeds[112:], objects=Objects(decode, least=0.5))
    made.yaml = {"dims": {"batch": 1, "height": 256, "width": 256}}
    return made


def _middles(width: int, height: int, stride: int) -> Array:
    axes = np.meshgrid(np.arange(width // stride), np.arange(height // stride))
    return np.stack(axes, -1).reshape(-1, 2) * stride + (stride - 1) / 2


@zoo("linux-x86-64", kind="mask")
def make_text_detection(folder: Path) -> Made:
    """Where there is text: all dimensions dynamic. Lines of text are drawn onto photographs."""
    random = np.random.default_rng(3)
    feeds = []
    for image in photographs(80, 192):
        drawn = image.copy()
        for _ in range(random.integers(1, 4)):
            row, column = random.integers(0, 160), random.integers(0, 60)
            drawn[row : row + 28, column : column + 128] = line_of_text(random, 128, 28)
        given = (drawn / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
        feeds.append({"x": given.transpose(2, 0, 1)[None].astype(np.float32)})
    model = shared("dense/ppocr_v3_det_en.onnx", folder)
    made = Made(
        model, feeds[:24], feeds[24:44], feeds[44:], {"sigmoid_0.tmp_0": Mask(threshold=0.3)}
    )
    made.yaml = {
        "dims": {f"p2o.DynamicDimension.{k}": size for k, size in enumerate((1, 192, 192))}
    }
    return made


@zoo("linux-x86-64", kind="signal")
def make_super_resolution_224(folder: Path) -> Made:
    """Brightness, three times as large."""
    images = np.stack(photographs(44, 224)) @ np.array([0.299, 0.587, 0.114]) / 255
    feeds = feeds_of(input=images[:, None].astype(np.float32))
    model = shared("dense/super_resolution_opset.onnx", folder)
    made = Made(model, feeds[:12], feeds[12:28], feeds[28:], {"output": Signal(window=96)})
    made.yaml = {"dims": {"batch_size": 1}}
    return made


@zoo("linux-x86-64", kind="stream")
def make_silero(folder: Path) -> Made:
    """Whether somebody speaks, in windows of 32 ms with a state."""
    heard = sound("audio/silero_vad/test.wav")
    return streamed(
        shared("audio/silero_vad/silero_vad_16k_op15.onnx", folder),
        speech_streams(heard, "input", sr=np.array(16000, np.int64)),
        {"state": "stateN"},
        {"state": np.zeros((2, 1, 128), np.float32)},
        {"output": Probability()},
    )


def speech_streams(heard: Array, name: str, **more: Array) -> list[list[dict[str, Array]]]:
    """Return streams of 60 windows of 512 samples, each with the 64 before."""
    starts = range(64, len(heard) - 512, 512)
    windows = [{name: heard[None, s - 64 : s + 512], **more} for s in starts]
    return [windows[k : k + 60] for k in range(0, len(windows) - 60, 60)]


@zoo("linux-x86-64", kind="stream")
def make_gtcrn(folder: Path) -> Made:
    """Speech without noise, frame by frame of a spectrum, with three caches."""
    heard = sound("audio/gtcrn/mix.wav")
    window = np.sqrt(np.hanning(513)[:-1])
    frames = np.lib.stride_tricks.sliding_window_view(heard, 512)[::256] * window
    spectra = np.fft.rfft(frames).astype(np.complex64)
    steps = [
        {"mix": np.stack([each.real, each.imag], -1)[None, :, None].astype(np.float32)}
        for each in spectra
    ]
    length = max(8, len(steps) // 16)
    streams = [steps[k : k + length] for k in range(0, len(steps) - length + 1, length)]
    caches = {
        "conv_cache": (2, 1, 16, 16, 33),
        "tra_cache": (2, 3, 1, 1, 16),
        "inter_cache": (2, 1, 33, 16),
    }
    return streamed(
        shared("audio/gtcrn/gtcrn_simple.onnx", folder),
        streams,
        {name: f"{name}_out" for name in caches},
        {name: np.zeros(shape, np.float32) for name, shape in caches.items()},
        {"enh": Signal(window=514)},
    )
