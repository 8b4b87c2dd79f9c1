"""``make runtimes``: edgepack's bundles in the runtimes that their targets pin.

::

    python -m tests.runtimes.run [--record FILE] [--newest]

For every onnxruntime that a profile pins, and for the three newest releases, a virtual environment
is made under ``.runtimes`` with the oldest Python that is allowed and this machine has. In it:

- one-node models say the highest IR version and opset that it loads, and the highest opset that
  it has kernels for QuantizeLinear and DequantizeLinear of: the profile's ``max_ir`` and
  ``max_opset`` have to be these,
- bundles of the example, of a model that takes pictures (preprocessing in the graph), and of one
  with the highest opset that the profile allows, have to load: variants for the CPU by the
  bundle's own loader, goldens included; the model files of the others in a CPU session, near the
  goldens too; .ort files for Arm with this processor's kernels, near or not,
- the harness has to run in every mode.

The last onnxruntime for Python 3.8 is tried like that with one bundle: no profile pins it, but the
device-side code says that it needs no more. With every Python from 3.8 on that this machine has,
two releases are pushed, verified, measured and taken back. Everything runs on x86-64 Linux: the
x86-64 wheel stands in for the others of the same version, and for the libraries of phones.

Exit codes: 0 all held, 1 something did not, 3 this machine cannot run it. What was not proven,
because there is no such Python here, is said; it counts as a failure where CI=true.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from edgepack.base.clock import format_now
from edgepack.base.machine import has_vnni
from edgepack.base.resources import find_example_dir, find_ondevice_dir, find_targets_dir
from edgepack.builder.build import build
from edgepack.errors import EdgepackError, ToolError
from edgepack.project.profile import Profile, read_profile

from tests.runtimes.environments import (
    Environment,
    Interpreter,
    allowed,
    environment,
    interpreters,
    locked,
)
from tests.runtimes.findings import Finding, print_table, say, write_record
from tests.runtimes.harness import run_modes
from tests.runtimes.models import write_limits, write_newest_project, write_pictures_project
from tests.runtimes.pins import OLDEST, Pin, list_releases, newest_pins, pins
from tests.runtimes.pythons import ANY, NEWEST_PYTHON, OLDEST_PYTHON, two_releases, walk
from tests.support.reports.proof_report import Check, report

ENVIRONMENTS = Path(__file__).resolve().parents[2] / ".runtimes"
INSIDE = Path(__file__).with_name("inside.py")
WIDE = "linux-x86-64"
"""The target whose bundle is tried in releases that no profile pins."""
CANNOT_RUN_EXIT = 3
NO_BETTER = "no better than a constant"
"""Of an .ort file for Arm it says nothing on x86-64 without VNNI, where its operators saturate."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Load bundles in the runtimes that targets pin.")
    parser.add_argument("--record", type=Path, help="write what was found, as JSON, to this file")
    parser.add_argument(
        "--newest", action="store_true", help="take the newest Python allowed, not the oldest"
    )
    arguments = parser.parse_args()
    machine = (platform.system(), platform.machine())
    if machine != ("Linux", "x86_64"):
        say(f"runtimes: cannot run here: needs Linux on x86-64, this is {' on '.join(machine)}")
        return CANNOT_RUN_EXIT
    began = time.monotonic()
    with locked(ENVIRONMENTS):
        findings = prove(newest=arguments.newest)
        lost = prove_pythons()
    print_table(findings)
    for line in lost:
        say(f"not so: {line}")
    if arguments.record:
        write_record(arguments.record, findings, format_now())
    failed = lost or any(finding.differences for finding in findings)
    seconds = time.monotonic() - began
    pins = [Check(each.pin.title, "; ".join(each.differences)) for each in findings]
    report("runtimes", [*pins, Check("releases with every Python", "; ".join(lost))], seconds)
    say(f"runtimes: {'FAILED' if failed else 'all held'} in {seconds:.0f} s")
    return 1 if failed else 0


def prove(*, newest: bool = False) -> list[Finding]:
    """Prove every pin, and return what was found, the oldest runtime first."""
    profiles = [read_profile(path) for path in sorted(find_targets_dir().glob("*.yaml"))]
    found = interpreters()
    say(f"Python here: {', '.join(each.version for each in found.values())}")
    pinned = pins(profiles)
    wide = newest_pins(list_releases(), pinned)
    findings = [Finding(pin) for pin in (OLDEST, *pinned, *wide)]
    with tempfile.TemporaryDirectory(prefix="edgepack-runtimes-") as name:
        work = Path(name)
        write_limits(work / "limits")
        bundles = build_all(profiles, work, findings)
        for finding in findings:
            python = allowed(finding.pin, found)
            if python:
                prove_pin(finding, python[-1 if newest else 0], work / "limits", bundles)
            else:
                no_python(finding)
    return findings


def prove_pythons() -> list[str]:
    """Walk the road of a release with every Python here; return what did not hold, a line each."""
    found = interpreters()
    wanted = [f"3.{minor}" for minor in range(OLDEST_PYTHON, NEWEST_PYTHON + 1)]
    lost = []
    with tempfile.TemporaryDirectory(prefix="edgepack-pythons-") as name:
        work = Path(name)
        os.environ["XDG_DATA_HOME"] = str(work / "data")
        bundles = two_releases(work)
        for minor in (minor for minor in wanted if minor in found):
            try:
                made = environment(ANY, found[minor], ENVIRONMENTS)
                walked = list(walk(made, bundles, work / minor))
            except EdgepackError as error:
                lost.append(f"Python {minor}: {error}")
                continue
            lost += [f"Python {minor}: {what}" for what, held in walked if not held]
            say(
                f"Python {found[minor].version}: {'; '.join(what for what, held in walked if held)}"
            )
    say(f"no Python {', '.join(minor for minor in wanted if minor not in found) or '-'} here")
    return lost


def no_python(finding: Finding) -> None:
    """Note that a pin cannot be tried."""
    finding.not_proven.append(f"there is no Python {finding.pin.python} here")
    if os.environ.get("CI") == "true":
        finding.differences.append(f"no Python {finding.pin.python} in CI")


def build_all(profiles: Sequence[Profile], work: Path, findings: Sequence[Finding]) -> list[Path]:
    """Build the bundles of all projects; what could not be built is noted where it is missed."""
    projects = {find_example_dir() / "edgepack.yaml": list(profiles)}
    projects[write_pictures_project(work / "pictures", profiles)] = list(profiles)
    for opset in sorted({profile.runtime.max_opset for profile in profiles}):
        theirs = [profile for profile in profiles if profile.runtime.max_opset == opset]
        projects[write_newest_project(work / f"opset-{opset}", opset, theirs)] = theirs
    bundles = []
    for project, theirs in projects.items():
        say(f"building {project.parent.name} for {len(theirs)} targets")
        own = () if project.is_relative_to(work) else [profile.id for profile in theirs]
        try:
            result = build(project=project, targets=own, out=work / "dist")
        except EdgepackError as error:
            lost = [(profile.id, "all variants", error.problem) for profile in theirs]
        else:
            bundles += [built.bundle.path for built in result.bundles]
            lost = [(*error.where.split(" "), error.problem) for error in result.errors]
            for target in set(result.unused) - {b.bundle.manifest.target for b in result.bundles}:
                lost += [(target, each.variant, each.reason) for each in result.unused[target]]
        for target, variant, reason in lost:
            finding = next(each for each in findings if target in each.pin.targets)
            what = f"{project.parent.name} for {target}: {variant} not built: {reason}"
            if NO_BETTER in reason and not has_vnni():
                say(f"not told here: {what}")
                continue
            finding.differences.append(what)
    return bundles


def prove_pin(finding: Finding, python: Interpreter, limits: Path, bundles: Sequence[Path]) -> None:
    """Prove one pin; what goes wrong is a difference."""
    pin = finding.pin
    say(f"{pin.title} on Python {python.version}")
    try:
        made = environment(pin, python, ENVIRONMENTS)
        compare_limits(finding, made, limits)
        theirs = bundles_of(pin, bundles)
        for bundle in theirs:
            load_variants(finding, made, bundle)
        run_harness(finding, made, theirs)
    except EdgepackError as error:
        finding.differences.append(error.problem)


def compare_limits(finding: Finding, made: Environment, limits: Path) -> None:
    """Find the highest IR version and opset, and compare them with the profiles'.

    Raises:
        ToolError: The environment does not work.
    """
    seen = made.run(INSIDE, "limits", limits)
    finding.python, finding.numpy = seen["python"], seen["numpy"]
    finding.expect("version of onnxruntime", seen["onnxruntime"], finding.pin.version)
    finding.max_ir = highest(seen["loads"], "ir")
    finding.max_opset = highest(seen["loads"], "opset")
    finding.max_int8_opset = highest(seen["loads"], "qdq")
    # Every profile has int8 variants, so its highest opset has to be one with their kernels.
    usable = min(finding.max_opset, finding.max_int8_opset)
    for profile in finding.pin.profiles:
        runtime = profile.runtime
        finding.expect(f"{profile.id}: runtime.max_ir", runtime.max_ir, finding.max_ir)
        finding.expect(f"{profile.id}: runtime.max_opset", runtime.max_opset, usable)


def highest(loads: dict[str, bool], kind: str) -> int:
    """Return the highest version of a kind of which all lower ones load, too.

    Raises:
        ToolError: None loads, or all do: then the limit is not among those tried.
    """
    tried = {
        int(name.rpartition("-")[2]): ok
        for name, ok in loads.items()
        if name.startswith(f"{kind}-")
    }
    first_refused = min((version for version, ok in tried.items() if not ok), default=0)
    if first_refused <= min(tried) or any(ok for v, ok in tried.items() if v > first_refused):
        raise ToolError(f"no limit of {kind} in {tried}", hint="try more versions in models.py")
    return first_refused - 1


def bundles_of(pin: Pin, bundles: Sequence[Path]) -> list[Path]:
    """Return the bundles for a pin's targets; for others one of the example's.

    For the oldest runtime it is that for jetson: the profile has a low ``max_ir``, and the
    example's model an IR version lower still.
    """
    if pin is OLDEST:
        return [path for path in bundles if path.name == "digits-1.0.0-jetson"]
    if not pin.profiles:
        return [path for path in bundles if path.name == f"digits-1.0.0-{WIDE}"]
    return [path for path in bundles if any(ends(path, target) for target in pin.targets)]


def ends(bundle: Path, target: str) -> bool:
    """Tell whether a bundle is one for this target."""
    return bundle.name.endswith(f"-1.0.0-{target}")


def load_variants(finding: Finding, made: Environment, bundle: Path) -> None:
    """Load every variant of a bundle, and note those that do not load.

    Raises:
        ToolError: The environment does not work.
    """
    # Bundles for phones have no Python; the loader is the same in all that have.
    own = bundle if (bundle / "edgepack_loader.py").exists() else find_ondevice_dir() / "runtime"
    arch = next((p.device.arch for p in finding.pin.profiles if ends(bundle, p.id)), "aarch64")
    for row in made.run(INSIDE, "bundle", bundle, own, arch)["variants"]:
        finding.variants.append({"bundle": bundle.name, **row})
        if not row["held"]:
            near = f"{row['golden_db']:.1f} dB near" if "golden_db" in row else row["refusal"]
            said = f"{near}, {row['needed_db']:.1f} are needed" if "golden_db" in row else near
            finding.differences.append(f"{bundle.name}: {row['id']}: {row['how']}: {said}")


def run_harness(finding: Finding, made: Environment, bundles: Sequence[Path]) -> None:
    """Run the harness of one bundle, and import all that runs on devices.

    Raises:
        ToolError: It fails.
    """
    linux = [path for path in bundles if (path / "harness").is_dir()]
    if linux:
        checks = list(run_modes(made, linux[0]))
        imported = made.run(INSIDE, "imports", find_ondevice_dir())["imported"]
        checks.append((f"{len(imported)} modules are imported", bool(imported)))
        finding.harness = [what for what, held in checks if held]
        finding.differences += [f"harness: not so: {what}" for what, held in checks if not held]


if __name__ == "__main__":
    sys.exit(main())
