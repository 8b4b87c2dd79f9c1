"""The README's road from a model to a measured device, walked over a loopback SSH server."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from edgepack.demo.server import LoopbackServer
from edgepack.project.profile import find_host_target
from onnx import TensorProto, helper
from PIL import Image

from tests.support.nets.tiny_models import save

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
ROAD = README[README.index("## Your own model") : README.index("## Targets")]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", ROAD, re.DOTALL | re.MULTILINE)


def write_users_files(folder: Path) -> None:
    """The user's classifier, 224 by 224 to 5 classes, their photos and labels."""
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["images", "w"], ["c"], "conv", strides=[8, 8]),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
        helper.make_node("MatMul", ["f", "m"], ["scores"], "linear"),
    ]
    weights = [
        ("w", random.standard_normal((16, 3, 8, 8)).astype(np.float32)),
        ("m", random.standard_normal((16, 5)).astype(np.float32)),
    ]
    save(
        folder / "classifier.onnx",
        nodes,
        [("images", TensorProto.FLOAT, ["batch", 3, 224, 224])],
        [("scores", TensorProto.FLOAT, ["batch", 5])],
        weights,
    )
    (folder / "detector.onnx").write_bytes((folder / "classifier.onnx").read_bytes())
    (folder / "photos").mkdir()
    rows = []
    for n in range(60):
        pixels = random.integers(0, 256, (30, 40, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{n}.png")
        rows.append(f"{n}.png,{n % 5}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")


UNSETTLED = ("bench", "compare")
"""Their short preset concludes nothing."""


def command_lines(server: LoopbackServer) -> list[list[str]]:
    """The README's edgepack commands, with this machine in the place of the Pi."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    argvs = [shlex.split(line) for line in lines if line.startswith("edgepack ")]
    for argv in argvs:
        for n, word in enumerate(argv):
            argv[n] = word.replace("raspberry-pi", find_host_target())
        if argv[1:3] == ["device", "add"]:
            argv[4] = f"{server.user}@{server.host}"
            argv += ["--port", str(server.port), "--key", str(server.client_key_path)]
            argv += ["--fingerprint", server.host_key_fingerprint]
        if argv[1] in UNSETTLED:
            argv += ["--preset", "smoke"]
        if argv[1] == "optimize":
            argv[argv.index("--budget") + 1] = "100s"
        if argv[1] == "compare":
            argv += ["--max-pairs", "6"]
            argv[3] = argv[3].replace("1.0.1", "1.0.0")  # the README's later build
    return argvs


def walk(argv: list[str], folder: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", *argv], cwd=folder, capture_output=True, check=False
    )


@pytest.mark.in_turns
@pytest.mark.slow(reason="fetches wheels")
def test_readme_when_followed_leads_to_a_measured_model(tmp_path):
    write_users_files(tmp_path)
    with LoopbackServer(tmp_path / "board") as server:
        (tmp_path / "hosts.ini").write_text(
            f"kiosk-1 ansible_host={server.host} ansible_port={server.port}"
            f" ansible_user={server.user} ansible_ssh_private_key_file={server.client_key_path}\n"
        )
        for argv in command_lines(server):
            if argv[1] == "build":
                (tmp_path / "edgepack.yaml").write_text(relaxed(blocks("yaml")[0]))
            done = walk(argv, tmp_path)
            # A slow machine says what it needs, by how long a run took just then.
            if enough := re.search(rb"hint: give --budget (\d+)s or more", done.stderr):
                argv[argv.index("--budget") + 1] = f"{2 * int(enough[1])}s"
                done = walk(argv, tmp_path)
            allowed = (0, 11) if argv[1] in UNSETTLED else (0,)
            assert done.returncode in allowed, (argv, done.stderr.decode())
    script = "import numpy as np\npixels = np.zeros((1, 3, 224, 224), np.float32)\n"
    script += blocks("python")[0].replace("raspberry-pi", find_host_target())
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.startswith(b"cpu-int8-static []")


def relaxed(project: str) -> str:
    """The README's project with a limit that a model of random weights can meet."""
    assert "metric_drop: 0.01" in project
    return project.replace("metric_drop: 0.01", "metric_drop: 0.5")


def test_readme_when_its_yaml_is_parsed_is_a_project():
    from edgepack.base.yaml_source import parse_yaml
    from edgepack.project.project import Project

    assert parse_yaml(blocks("yaml")[0], name="README.md").parse(Project).name == "classifier"
