"""The virtual environment of the other quantizers, made when it is first needed."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.bench.measuring import run

REQUIREMENTS = ("nncf==3.4.0", "onnx==1.23.2", "onnxruntime==1.31.1", "onnxsim==0.8.1")
FOLDER = Path(__file__).resolve().parents[2] / ".venv-peers"
_STAMP = "made-of"


def peer_python() -> Path:
    """Return the interpreter of the environment, with the pinned versions in it."""
    python, stamp = FOLDER / "bin" / "python", FOLDER / _STAMP
    wanted = "\n".join(REQUIREMENTS)
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        run([sys.executable, "-m", "venv", "--clear", str(FOLDER)])
        run([str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS])
        stamp.write_text(wanted, encoding="utf-8")
    return python
