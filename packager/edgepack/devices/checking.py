"""Checks that a device can run what is built for its target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from edgepack.backends.registry import BACKENDS
from edgepack.devices.clocks import give_back_clocks
from edgepack.devices.inventory import Device
from edgepack.devices.probing import Missing, ProbedFacts, PythonFacts, probe, propose_target
from edgepack.devices.provisioning.native import list_native_problems
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError
from edgepack.project.profile import Profile, load_profile


@dataclass(frozen=True)
class AbsentProvider:
    """An execution provider that the device's onnxruntime does not have."""

    provider: str
    variants: tuple[str, ...]
    """The target's variants that cannot run without it."""
    about: str
    """Where to get a runtime with it."""
    commands: tuple[str, ...]
    """Shell lines for that."""

    def format_lines(self) -> list[str]:
        """Return it as lines for people."""
        first = f"{self.provider} is absent, so these do not run: {', '.join(self.variants)}"
        about = [f"  {self.about}"] if self.about else []
        return [first, *about, *(f"  $ {command}" for command in self.commands)]


@dataclass(frozen=True)
class PhoneFacts:
    """What a phone is, as far as the machine that it is attached to reports it."""

    system: str
    model: str
    hardware: str
    """For Android its chip and ABI, for iOS the value of ``utsname.machine``."""

    def format_lines(self) -> list[str]:
        """Return the facts as lines for people."""
        return [f"{self.system}: {self.model}", self.hardware]


@dataclass(frozen=True)
class BrowserFacts:
    """What a browser is, as its page reports it."""

    browser: str
    """Its name and its system: ``Chrome 156 on Linux``."""
    user_agent: str
    cpu_count: int
    isolated: bool
    """Whether the page is cross-origin isolated, which threads of WebAssembly need."""
    clock_step_us: float
    """The step in which its clock moves."""
    gpu: str
    """What WebGPU computes on, and whether that is simulated; or why there is none."""
    runtime: str
    """The version of onnxruntime-web that it is given."""

    def format_lines(self) -> list[str]:
        """Return the facts as lines for people."""
        return [
            f"{self.browser}: {self.user_agent}",
            f"{self.cpu_count} cores, "
            + (
                "cross-origin isolated"
                if self.isolated
                else "not cross-origin isolated: one thread"
            )
            + f", a clock that moves in steps of {self.clock_step_us:g} µs",
            self.gpu,
            f"onnxruntime-web {self.runtime}",
        ]


@dataclass(frozen=True)
class Checked:
    """A device's facts, and the problems that prevent it from running its target's bundles."""

    device: str
    target: str
    facts: ProbedFacts | PhoneFacts | BrowserFacts
    problems: tuple[str, ...]
    """Each with what to do about it."""
    absent: tuple[AbsentProvider, ...]
    """Providers that some variants need and the device lacks; other variants run without them."""
    given_back: tuple[str, ...] = ()
    """Settings that a killed measurement had left changed, and that are restored now."""

    def format_absent(self) -> list[str]:
        """Return the absent providers as lines for people, commands that several share once."""
        lines: list[str] = []
        shown: dict[tuple[str, ...], str] = {}
        for absent in self.absent:
            first = shown.setdefault(absent.commands, absent.provider)
            if absent.commands and first != absent.provider:
                lines += [
                    *replace(absent, commands=()).format_lines(),
                    f"  the commands for {first}",
                ]
            else:
                lines += absent.format_lines()
        return lines

    def require_ready(self) -> None:
        """Check that there are no problems.

        Raises:
            DeviceError: There are problems.
        """
        if self.problems:
            found = "".join(f"\n  {problem}" for problem in self.problems)
            raise DeviceError(
                f"the device is not ready for target {self.target!r}{found}",
                hint=f"fix that, then: edgepack device check {self.device}",
                where=self.device,
            )


def check(device: Device) -> Checked:
    """Connect to a device and compare it with what its target needs.

    Settings that a killed measurement with ``--tune`` left changed are restored.

    Raises:
        DeviceError: It cannot be reached or trusted; or the settings could not be restored.
        UsageError: There is no such target.
    """
    profile = load_profile(device.target)
    with connect(device) as transport:
        facts = probe(device, transport)
        has_python = not isinstance(facts.python, Missing)
        given_back = give_back_clocks(transport, device) if has_python else []
    problems = find_problems(device, facts, profile)
    absent = find_absent_providers(facts.python, profile)
    return Checked(
        device.name, profile.id, facts, tuple(problems), tuple(absent), tuple(given_back)
    )


def find_absent_providers(python: PythonFacts | Missing, profile: Profile) -> list[AbsentProvider]:
    """Return the providers that variants put first and an interpreter's onnxruntime lacks."""
    if isinstance(python, Missing):
        return []
    has = set(python.providers)
    # No session lists a plugin until it is registered.
    has |= {b.provider for b in BACKENDS.values() if b.plugin in python.distributions}
    firsts = [variant.providers[0] for variant in profile.variants]
    there = set(map(canonicalize_name, python.distributions))
    has |= {p.name for p in firsts if p.plugin and canonicalize_name(p.plugin.package) in there}
    wanted = dict.fromkeys(first.name for first in firsts)
    absent = []
    for name in [name for name in wanted if name not in has]:
        source = profile.runtime.providers.get(name)
        absent.append(
            AbsentProvider(
                name,
                tuple(v.id for v in profile.variants if v.providers[0].name == name),
                source.about if source else "",
                tuple(source.commands) if source else (),
            )
        )
    return absent


def find_problems(device: Device, facts: ProbedFacts, profile: Profile) -> list[str]:
    """Return what prevents a device from running its target's bundles, each with what to do."""
    return [
        *_find_kind_problems(facts, profile),
        *(": ".join(problem) for problem in [find_driver_problem(facts, profile)] if problem),
        *_find_python_problems(device, facts, profile),
        *_find_package_problems(device, facts, profile),
    ]


def require_kind(device: Device, facts: ProbedFacts) -> None:
    """Check that a device is the kind of machine that its target is.

    Raises:
        DeviceError: It is another kind.
        UsageError: There is no such target.
    """
    for problem in _find_kind_problems(facts, load_profile(device.target)):
        mismatch, _, remedy = problem.partition(": ")
        raise DeviceError(
            mismatch,
            hint=f"{remedy}, and push the bundle of that target",
            where=device.name,
        )


def find_runtime_python(device: Device, facts: ProbedFacts) -> str:
    """Return the interpreter that runs bundles on the device.

    Raises:
        DeviceError: There is none, or it lacks onnxruntime or numpy.
    """
    packages = {} if isinstance(facts.python, Missing) else facts.python.packages
    for name, found in (("Python", facts.python), *packages.items()):
        if isinstance(found, Missing):
            raise DeviceError(
                f"the device has no usable {name}: {found.reason}",
                hint=_make_provision_hint(device),
                where=device.name,
            )
    return facts.python_path


def _make_provision_hint(device: Device) -> str:
    if device.entry.python is not None:
        return f"install it into {device.entry.python} ('python' in devices.yaml), or remove that"
    return f"edgepack device provision {device.name}"


def _find_kind_problems(facts: ProbedFacts, profile: Profile) -> list[str]:
    mismatch = find_kind_mismatch(facts, profile)
    if mismatch is None:
        return []
    try:
        remedy = f"set 'target: {propose_target(facts)}' in devices.yaml"
    except DeviceError as error:
        remedy = error.hint
    return [f"{mismatch}: {remedy}"]


def find_kind_mismatch(facts: ProbedFacts, profile: Profile) -> str | None:
    """Return how a device's kind differs from its target's; None if it does not."""
    wanted = profile.device
    if (facts.os, facts.arch) == (wanted.os, wanted.arch):
        return None
    found, needed = f"{facts.os} on {facts.arch}", f"{wanted.os} on {wanted.arch}"
    return f"the device is {found}, target {profile.id!r} is {needed}"


def find_driver_problem(facts: ProbedFacts, profile: Profile) -> tuple[str, str] | None:
    """Return why a device's NVIDIA driver is not what its target needs, and what to do; or None."""
    wanted = profile.device.nvidia_driver
    if wanted is None or SpecifierSet(wanted).contains(facts.nvidia_driver or "0"):
        return None
    found = (
        f"NVIDIA's driver is {facts.nvidia_driver}" if facts.nvidia_driver else "no NVIDIA driver"
    )
    remedy = "install a newer driver there, as root, and reboot: docs.nvidia.com/datacenter/tesla"
    return f"{found}, and target {profile.id!r} needs {wanted}", remedy


def _find_python_problems(device: Device, facts: ProbedFacts, profile: Profile) -> list[str]:
    if facts.lacks_python and device.may_lack_python:
        return list(list_native_problems(facts, profile))
    if isinstance(facts.python, Missing):
        remedy = "install python3 on the device"
        if device.entry.python is not None:
            remedy = f"install it, or leave 'python' of {device.name!r} out of devices.yaml"
        return [f"no Python: {facts.python.reason}: {remedy}"]
    if SpecifierSet(profile.device.python or "").contains(facts.python.version):
        return []
    remedy = f"name another with 'python' for {device.name!r} in devices.yaml"
    found, needed = facts.python.version, profile.device.python
    return [f"{facts.python_path} is {found}, target {profile.id!r} needs {needed}: {remedy}"]


def _find_package_problems(device: Device, facts: ProbedFacts, profile: Profile) -> list[str]:
    if isinstance(facts.python, Missing):
        return []
    pins = dict(profile.runtime.packages)
    if not isinstance(facts.python.packages.get("onnxruntime", Missing("")), Missing):
        for backend in BACKENDS.values():
            if backend.plugin in facts.python.distributions:
                pins.pop(backend.plugin_replaces, None)
    return [
        f"{problem}: {_make_provision_hint(device)}"
        for problem in find_unmet_pins(facts.python, pins)
    ]


def find_unmet_pins(python: PythonFacts, pins: Mapping[str, str]) -> list[str]:
    """Return which pinned packages an interpreter lacks or has in another version."""
    problems = []
    for name, specifier in pins.items():
        # The module onnxruntime may come from a package of another name, such as a user's own
        # build.
        found = python.packages.get(name, Missing("not installed"))
        if name not in python.packages and name in python.distributions:
            found = python.distributions[name]
        if isinstance(found, Missing):
            problems.append(f"no usable {name}: {found.reason}")
        elif found not in SpecifierSet(specifier):
            problems.append(f"{name} is {found}, not {specifier}")
    return problems
