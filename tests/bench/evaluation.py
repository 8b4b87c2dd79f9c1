"""What ``edgepack evaluate`` costs beside the device's own inference and the wire.

The device is this machine behind a real OpenSSH. The wire is what the samples and the outputs would
take at the rate at which ``ssh`` carries bytes to ``cat`` there, measured before and after each
evaluation; inference is what the device says of each sample. The device, both ends of ssh and the
judge share the cores of this machine, which they do not where the device is another one.

The whole is from calling ``evaluate`` to its report. Each project is evaluated twice: first fp32
runs on each sample too, then what it gave is taken. Of the whole, the start does not grow with the
samples: connecting, pushing, choosing the variant, creating sessions and proving the placement.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np
from edgepack.bundle.reading import load_bundle
from edgepack.measure.evaluate.evaluate import evaluate
from edgepack.model.facts import read_model_facts
from edgepack.project.profile import find_host_target
from edgepack.records.run import EvaluationReport

from tests.bench.measuring import Row, build_command, own_folders, run, scratch
from tests.bench.projects import MOBILENET, SQUEEZENET, PublicModel, public_data, write_project
from tests.support.doubles.watched_progress import Watched
from tests.support.servers.loopback import ssh_device
from tests.support.servers.openssh_server import OpenSshServer, find_sshd

SENT_BYTES = 100_000_000
SAMPLES_BYTES = 300_000_000
"""So many bytes of samples: what they hold makes no difference."""
SAMPLES = "{calibration: {images: images, limit: 20}, evaluation: {path: many.npz}}"


def measure() -> Iterator[Row]:
    """Yield a row for each evaluation of two public models, where there are any."""
    data = public_data()
    if data is None or find_sshd() is None:
        return
    for model in (SQUEEZENET, MOBILENET):
        with scratch() as folder:
            yield from _rows(model, data, folder)


def _rows(model: PublicModel, data: Path, folder: Path) -> Iterator[Row]:
    os.environ.update(own_folders(folder))
    (folder / "project").mkdir()
    project = write_project(folder / "project", model, data, SAMPLES)
    (spec,) = read_model_facts(data / model.file).inputs
    shape = [size if isinstance(size, int) else 1 for size in spec.shape or ()]
    count = SAMPLES_BYTES // (4 * prod(shape))
    many = np.random.default_rng(1).standard_normal((count, *shape[1:]), np.float32)
    np.savez(folder / "project" / "many.npz", **{spec.name: many})
    run(build_command(project, folder / "dist"))
    (bundle,) = (path for path in (folder / "dist").iterdir() if path.is_dir())
    root = str(folder / "root")
    with OpenSshServer(folder / "sshd") as server:
        device = ssh_device(server, target=find_host_target(), root=root, python=sys.executable)
        for what in ("fp32 runs too", "fp32 is kept"):
            before = _ssh_seconds(server)
            answers = Answers()
            report = evaluate(bundle, device, project=project, progress=answers)
            per_byte = (before + _ssh_seconds(server)) / 2 / SENT_BYTES
            wire_s = _bytes_of_a_sample(bundle) * len(report.inference_ns) * per_byte
            yield _row(f"evaluate, {model.name}, {what}", report, wire_s, answers.seconds)


class Answers(Watched):
    """Notes when the first and the last answer came."""

    def __init__(self) -> None:
        self._at: list[float] = []

    def report(self, part: str, done: int, total: int) -> None:
        """Note when an answer came."""
        if part.endswith("samples") and done in (1, total):
            self._at.append(time.perf_counter())

    @property
    def seconds(self) -> float:
        """From the first answer to the last."""
        return self._at[1] - self._at[0]


def _row(what: str, report: EvaluationReport, wire_s: float, answers_s: float) -> Row:
    whole_s, inference_s = report.elapsed_ns / 1e9, sum(report.inference_ns) / 1e9
    least_s = inference_s + wire_s
    return Row(
        what,
        f"{len(report.inference_ns)} samples",
        f"{whole_s / least_s:.2f}, from first answer to last {answers_s / least_s:.2f}",
        "at most 1.3",
        f"whole {whole_s:.1f} s, inference {inference_s:.1f} s, wire {wire_s:.1f} s",
    )


def _bytes_of_a_sample(bundle: Path) -> int:
    """Return how many bytes travel for a sample: float32, one sample at a time."""
    manifest = load_bundle(bundle).manifest
    shapes = [tensor.shape for tensor in (*manifest.inputs, *manifest.outputs)]
    return sum(4 * prod(size if isinstance(size, int) else 1 for size in shape) for shape in shapes)


def _ssh_seconds(server: OpenSshServer) -> float:
    """Return how long ssh takes for bytes that do not repeat, once it is connected."""
    login = [*server.client_options(), f"{server.user}@{server.host}"]
    argv = ["ssh", "-p", str(server.port), *login, "cat > /dev/null"]
    seconds = []
    for data in (b"", np.random.default_rng(2).bytes(SENT_BYTES)):
        began = time.perf_counter()
        subprocess.run(argv, input=data, check=True, timeout=600)
        seconds.append(time.perf_counter() - began)
    return seconds[1] - seconds[0]
