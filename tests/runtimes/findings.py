"""What was found in each runtime: what holds, what does not, and what could not be proven."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.runtimes.pins import Pin, stands_in

_CHECKOUT = str(Path(__file__).resolve().parents[2])

FORMAT = "{:27} {:8} {:8} {:>4} {:>6} {:>5} {:>7} {:>7} {:>6}  {}"
HEADINGS = (
    "runtime",
    "python",
    "numpy",
    "IR",
    "opset",
    "int8",
    "loader",
    "as CPU",
    ".ort",
    "targets",
)


def say(text: str) -> None:
    """Print one line at once."""
    print(text, flush=True)


@dataclass
class Finding:
    """What was found in one runtime."""

    pin: Pin
    python: str = "-"
    numpy: str = "-"
    max_ir: int = 0
    max_opset: int = 0
    max_int8_opset: int = 0
    variants: list[dict[str, Any]] = field(default_factory=list)
    harness: list[str] = field(default_factory=list)
    """What held of the harness and the device-side modules."""
    differences: list[str] = field(default_factory=list)
    not_proven: list[str] = field(default_factory=list)

    def expect(self, what: str, found: object, wanted: object) -> None:
        """Note a difference unless what was found is what is wanted."""
        if found != wanted:
            self.differences.append(f"{what}: found {found}, expected {wanted}")

    def loaded(self, how: str) -> int:
        """Count the variants that were proven in this way."""
        return sum(row["held"] and row["how"] == how for row in self.variants)

    @property
    def line(self) -> str:
        """The finding's row in the table."""
        counts = [self.loaded(how) for how in ("loader", "CPU session", "other kernels")]
        limits = (self.max_ir, self.max_opset, self.max_int8_opset)
        numbers = [number or "-" for number in (*limits, *counts)]
        targets = ", ".join(self.pin.targets) or f"(none: {self.pin.about})"
        return FORMAT.format(self.pin.title, self.python, self.numpy, *numbers, targets)

    @property
    def record(self) -> dict[str, Any]:
        """The finding as JSON takes it."""
        targets = {profile.id: stands_in(profile) for profile in self.pin.profiles}
        return {
            "requirements": list(self.pin.requirements),
            "python": self.python,
            "numpy": self.numpy,
            "max_ir": self.max_ir,
            "max_opset": self.max_opset,
            "max_int8_opset": self.max_int8_opset,
            "targets": {target: {"stands_in_for": what} for target, what in targets.items()},
            "variants": self.variants,
            "harness": self.harness,
            "differences": self.differences,
            "not_proven": self.not_proven,
        }


def print_table(findings: Sequence[Finding]) -> None:
    """Print a row for each runtime, then what does not hold and what was not proven."""
    say("")
    say(FORMAT.format(*HEADINGS))
    for finding in findings:
        say(finding.line)
    say("")
    say("int8: the highest opset with kernels for QuantizeLinear and DequantizeLinear.")
    say("loader: variants that the bundle's loader took, near all goldens; as CPU: files of other")
    say("providers' variants, run on the CPU, near too; .ort: for Arm, run with other kernels.")
    for what, targets in _stand_ins(findings).items():
        say(f"The x86-64 wheel stands in for {what}: {', '.join(targets)}.")
    for kind in ("not_proven", "differences"):
        lines = [
            f"{finding.pin.title}: {line}"
            for finding in findings
            for line in getattr(finding, kind)
        ]
        say(f"{kind.replace('_', ' ')}: {len(lines) or 'none'}")
        for line in lines:
            say(f"  {line}")


def write_record(path: Path, findings: Sequence[Finding], created: str) -> None:
    """Write the findings as JSON; folders in errors' texts are replaced by what they are."""
    document = {
        "schema_version": 1,
        "created": created,
        "machine": "Linux x86-64",
        "held": not any(finding.differences for finding in findings),
        "runtimes": {f"{f.pin.title} on Python {f.python}": f.record for f in findings},
    }
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    for folder, word in ((_CHECKOUT, "CHECKOUT"), (tempfile.gettempdir(), "TEMP")):
        text = text.replace(folder, word)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace(str(Path.home()), "HOME"), encoding="utf-8")


def _stand_ins(findings: Sequence[Finding]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for profile in (profile for finding in findings for profile in finding.pin.profiles):
        if what := stands_in(profile):
            found.setdefault(what, []).append(profile.id)
    return found
