"""The compose file, against the schema of the Compose specification."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml
from edgepack.base.processes import ProgramResult, run_program

from tests.mobile.proofs import Proof, require
from tests.service.served import make_bundle

SCHEMA = "vendor.compose-spec"
"""The specification's own, as check-jsonschema carries it."""


def check(path: Path) -> ProgramResult:
    argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", SCHEMA, str(path)]
    return run_program(argv, timeout_s=60)


def look_at_schema(work: Path) -> str:
    """It is as the specification wants it; a file that is not is found."""
    text = (make_bundle() / "compose.yaml").read_text()
    done = check(make_bundle() / "compose.yaml")
    require(not done.exit_code, f"check-jsonschema: {done.text}{done.last_lines}")
    planted = work / "compose.yaml"
    planted.write_text(text.replace("read_only: true", "readonly: true"))
    require(check(planted).exit_code == 1, "a key that is none is not found")
    return "it holds, and a planted key does not"


def look_at_command(_: Path) -> str:
    """It takes the place of the image's own: without --host nobody would reach the container."""
    [service] = yaml.safe_load((make_bundle() / "compose.yaml").read_text())["services"].values()
    image = (make_bundle() / "Containerfile").read_text().splitlines()[-1]
    require(f"CMD {json.dumps(service['command'])}" == image, f"{service['command']}, not {image}")
    return "its command is the image's"


PROOFS = (
    Proof("the schema of the Compose specification", look_at_schema),
    Proof("the command", look_at_command),
)
