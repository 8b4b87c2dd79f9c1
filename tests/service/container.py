"""The image: the same digest twice; it runs, answers, and says when it does not."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from edgepack.ondevice.runtime import edgepack_loader as loader

from tests.mobile.proofs import Proof, require
from tests.service.filters import make_seccomp
from tests.service.image import Builder
from tests.service.running import Container, make_config, running
from tests.service.served import make_bundle

TAG = "localhost/digits"
PYTHON = "/venv/bin/python"
NO_VARIANT_EXIT = 3
_OPEN = "import mmap; mmap.mmap(-1, 4096, prot=7)"
_WRITE = "open('/bundle/more', 'w')"
_WHO = "import os; print(os.getuid(), open('/proc/1/status').read())"


def look(work: Path) -> str:
    """All of it, because the image is made once."""
    builder, bundle = Builder(work), make_bundle()
    builder.make_base()
    digests = {builder.build(bundle, TAG) for _ in range(2)}
    require(len(digests) == 1, f"two builds are two images: {', '.join(digests)}")
    image = builder.read_config(TAG)
    containerfile = (bundle / "Containerfile").read_text()
    [health] = re.findall(r"^HEALTHCHECK .*CMD (\[.*\])$", containerfile, re.MULTILINE)
    unit = (bundle / "service" / "edgepack-digits.service").read_text()
    with builder.unpacked(TAG) as root:
        config = make_config(root, image, make_seccomp(unit))
        with running(work / "whole", config) as container:
            container.wait_ready(json.loads(health))
            look_at_answers(container, bundle)
            look_at_walls(container)
            require(container.stop() == 0, "it does not end well at SIGTERM")
        look_at_broken(work, config, json.loads(health))
        look_at_filter(work, config)
    return f"{digests.pop()[:19]} twice, ready, answers as the loader, unit's filters, read only"


def look_at_answers(container: Container, bundle: Path) -> None:
    """It gives what the loader gives here."""
    golden = loader.load(bundle).bundle.read_golden_inputs(0)["image"]
    outputs = loader.load(bundle)({"image": golden})["logits"]
    entry = {"name": "image", "datatype": "FP32", "shape": list(golden.shape)}
    body = json.dumps({"inputs": [{**entry, "data": golden.reshape(-1).tolist()}]}).encode()
    status, answer = container.ask("/v2/models/digits/infer", body, "application/json")
    require(status == 200, f"infer: {status} {answer!r}")
    found = np.array(json.loads(answer)["outputs"][0]["data"], np.float32)
    require(np.allclose(found, outputs.reshape(-1), rtol=1e-4), "infer gives something else")
    for path, data, kind, wanted in (
        ("/v2/health/ready", b"", "", 200),
        ("/metrics", b"", "", 200),
        ("/predict", b"no picture", "image/png", 400),
    ):
        status, answer = container.ask(path, data, kind)
        require(status == wanted, f"{path}: {status} {answer!r}")


def look_at_walls(container: Container) -> None:
    """It is nobody, may nothing, and writes nothing."""
    who = container.execute([PYTHON, "-c", _WHO]).text
    require(who.startswith("65532 "), f"it is user {who[:6]}")
    for line in ("CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
        require(line in who, f"{line} is not so: {who}")
    for code, word in ((_WRITE, "Read-only file system"), (_OPEN, "PermissionError")):
        done = container.execute([PYTHON, "-c", code])
        said = done.stderr.decode()
        require(done.exit_code == 1 and word in said, f"{code}: {said or 'is allowed'}")


def look_at_broken(work: Path, config: dict[str, Any], health: list[str]) -> None:
    """With golden outputs that are others it is never ready, and ends."""
    broken = work / "bundle"
    shutil.copytree(make_bundle(), broken)
    break_goldens(broken)
    mount = {"destination": "/bundle", "type": "none", "source": str(broken), "options": ["bind"]}
    with running(work / "broken", {**config, "mounts": [*config["mounts"], mount]}) as container:
        codes = set()
        while container.process.poll() is None:
            codes.add(container.execute(health).exit_code)
        require(0 not in codes, f"the health check passes: {container.log.read_text()}")
        code = container.process.wait(60)
        said = container.log.read_text()
        require(code == NO_VARIANT_EXIT and "not served" in said, f"it ends with {code}: {said}")


def break_goldens(bundle: Path) -> None:
    """Make the golden outputs of a bundle others than any of its variants gives."""
    for path in bundle.glob("golden/*/*/output-*.bin"):
        path.write_bytes((np.frombuffer(path.read_bytes(), np.float32)[::-1] * -3).tobytes())


def look_at_filter(work: Path, config: dict[str, Any]) -> None:
    """Without the unit's filter the program that it stops is not stopped: the filter is real."""
    del config["linux"]["seccomp"]
    config["process"]["args"] = [PYTHON, "-c", _OPEN]
    with running(work / "open", config) as container:
        require(container.process.wait(60) == 0, container.log.read_text())


PROOFS = (Proof("an image that answers, and says when it does not", look),)
