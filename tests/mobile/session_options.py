"""Session settings that are not the defaults, and what onnxruntime says of a session with them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.mobile.proofs import require

SETTINGS: dict[str, Any] = {
    "execution_mode": "parallel",
    "inter_op_num_threads": 3,
    "enable_cpu_mem_arena": False,
    "enable_mem_pattern": False,
    "log_severity_level": 1,
}
"""In a manifest's words. From this level on, onnxruntime prints the options of each session."""
_SAID = (
    "execution_mode:1",
    "enable_mem_pattern:0",
    "enable_cpu_mem_arena:0",
    "session_log_severity_level:1",
)


def set_all(bundle: Path, variant: str) -> None:
    """Give a variant of a bundle's manifest the settings."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    for entry in manifest["variants"]:
        if entry["id"] == variant:
            entry["session"].update(SETTINGS)
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def require_all(stderr: str) -> str:
    """Look for the settings in what a program printed; return how many sessions had them."""
    sessions = re.findall(r"Session Options \{.*", stderr)
    require(bool(sessions), f"onnxruntime prints no session options: {stderr[-500:]}")
    for session in sessions:
        missed = [each for each in _SAID if each not in session]
        threads = re.search(r"inter_op_param:.*?thread_pool_size: (\d+)", session)
        if threads is None or threads[1] != "3":
            missed.append("3 inter-op threads")
        require(not missed, f"{', '.join(missed)} are not in: {session}")
    return f"{len(sessions)} sessions"
