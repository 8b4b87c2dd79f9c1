"""Reads what the page in a browser answers. Nothing here reaches a browser."""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

from pydantic import Field

from edgepack.base.schema import StrictModel
from edgepack.bundle.unused import Unused
from edgepack.devices.answers import parse_answer
from edgepack.devices.harness import MAX_RUN_BYTES
from edgepack.errors import RemoteCommandError
from edgepack.records.run import Name, Ns

_BROWSERS = (
    # What another browser's name is in comes first. Source: MDN, "Browser detection using the user
    # agent string".
    ("Edge", r"\bEdgA?/(\d+)"),
    ("Opera", r"\bOPR/(\d+)"),
    ("Samsung Internet", r"\bSamsungBrowser/(\d+)"),
    ("Firefox", r"\b(?:Firefox|FxiOS)/(\d+)"),
    ("Chrome", r"\b(?:HeadlessChrome|Chrome|CriOS)/(\d+)"),
    ("Safari", r"\bVersion/(\d+)[\d.]* (?:Mobile/\w+ )?Safari"),
)
_SYSTEMS = (
    ("Android", "Android"),
    ("iPhone|iPad", "iOS"),
    ("Windows", "Windows"),
    ("CrOS", "ChromeOS"),
    ("Mac OS X", "macOS"),
    ("Linux", "Linux"),
)
_SOFTWARE = re.compile("swiftshader|llvmpipe|lavapipe|basic render|warp", re.IGNORECASE)
"""Names of programs that stand in for a GPU: Chromium's, Mesa's, Windows'."""

_Document = TypeVar("_Document", bound=StrictModel)


class Gpu(StrictModel):
    """What WebGPU computes on."""

    name: Name = ""
    is_fallback: bool = False
    """Whether the browser itself says that it is software."""
    features: list[Name] = []
    absence: Name = ""
    """Why there is none."""

    @property
    def is_software(self) -> bool:
        """Whether a program stands in for a GPU, whose time is not a GPU's."""
        return self.is_fallback or _SOFTWARE.search(self.name) is not None

    def __str__(self) -> str:
        if self.absence:
            return f"no WebGPU: {self.absence}"
        name = self.name or "a GPU that the browser does not name"
        half = "" if "shader-f16" in self.features else ", without shader-f16"
        return f"WebGPU on {name}{half}{', simulated in software' if self.is_software else ''}"


class Described(StrictModel):
    """What a browser is."""

    user_agent: Name
    cpu_count: Annotated[int, Field(gt=0)]
    """As the browser has it, which may be fewer than there are."""
    isolated: bool
    """Whether the page is cross-origin isolated, which threads of WebAssembly need."""
    tick_ns: Annotated[int, Field(gt=0)]
    """The step in which its clock moves."""
    gpu: Gpu

    @property
    def browser(self) -> str:
        """The browser and its system: ``Chrome 156 on Linux``."""
        agent = self.user_agent
        names = ((name, re.search(pattern, agent)) for name, pattern in _BROWSERS)
        name = next((f"{name} {found[1]}" for name, found in names if found), "a browser")
        system = next((name for pattern, name in _SYSTEMS if re.search(pattern, agent)), "")
        return f"{name} on {system}" if system else name


class _PassedOver(StrictModel):
    variant: Name
    reason: Name


class Opened(StrictModel):
    """A variant that is open in a page."""

    variant: Name
    passed_over: list[_PassedOver]
    notes: list[Name]
    onnxruntime: Name
    threads: Annotated[int, Field(gt=0)]
    """Of WebAssembly."""
    session_create_ns: Ns
    first_inference_ns: Ns
    golden_min_sqnr_db: float
    tick_ns: Annotated[int, Field(gt=0)]

    def list_unused(self) -> list[Unused]:
        """Return the better variants that do not work there."""
        return [
            Unused(variant=each.variant, stage="passed over", reason=each.reason)
            for each in self.passed_over
        ]


class Timed(StrictModel):
    """Inferences of a single stream, by the page's clock."""

    latencies_ns: Annotated[list[Ns], Field(min_length=1)]
    from_ns: Ns
    to_ns: Ns
    not_finite: list[Name] = []


class Profiled(StrictModel):
    """What onnxruntime printed of a profile."""

    events: str


class Ran(StrictModel):
    """The header of answers to samples, which follow it."""


def read_document(model: type[_Document], header: bytes, device: str) -> _Document:
    """Return what a page answered.

    Raises:
        RemoteCommandError: It is no such document.
    """
    try:
        return parse_answer(model, header, max_bytes=MAX_RUN_BYTES)
    except ValueError as error:
        raise RemoteCommandError(
            f"the page answered no {model.__name__}: it {error}; it began with"
            f" {header[:80].decode('utf-8', 'replace')!r}",
            hint="build the bundle again if it is of another edgepack",
            where=device,
        ) from error


def read_events(printed: str) -> bytes:
    """Return a profile, which onnxruntime-web prints in lines, without other lines.

    Source: onnxruntime-web 1.30.0, tried: a line for each event, between ``[`` and ``]``.
    """
    begin, end = printed.find("[\n"), printed.rfind("]")
    return printed[begin : end + 1].encode() if begin >= 0 else printed.encode()
