"""Brings a bundle to a browser and hands out its measurements there."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from packaging.specifiers import SpecifierSet

import edgepack
from edgepack.base.progress import Progress
from edgepack.base.resources import find_ondevice_dir
from edgepack.builder.libraries import list_code
from edgepack.bundle.manifest import MANIFEST
from edgepack.bundle.reading import Bundle
from edgepack.deploy.leases import leased
from edgepack.devices.frames import FrameError, SampleAnswer, encode, read_answer
from edgepack.devices.inventory import BrowserEntry, Device
from edgepack.devices.transports import connect
from edgepack.errors import (
    BundleError,
    ProfileError,
    RemoteCommandError,
    SamplesError,
    ToolError,
    UsageError,
)
from edgepack.measure.browsers.harness import BrowserHarness
from edgepack.measure.browsers.pages import Pages
from edgepack.measure.browsers.site import serving
from edgepack.measure.evaluate.stream import Inputs
from edgepack.ondevice.harness import edgepack_canary as canary
from edgepack.project.profile import load_profile
from edgepack.records.run import Scenario

PACKAGE = "onnxruntime-web"
_PAGE = "browser"
"""The folder of ``ondevice/`` with the page's files."""
_OPENER = "runtime/opener.js"
"""A file of a bundle's code."""
_PIECE_BYTES = 1 << 22
"""Samples are sent together, about this many bytes at a time."""
_PIECE_S = 10.0
"""So long about does a browser compute on samples that are sent together."""
_PIECE_ANSWER_BYTES = 1 << 26
"""About so large are their answers together."""
_PIECE_GROWTH = 8
"""By how much a piece may have more samples than the one before: others may take longer."""


def require_asked_of_browsers(device: Device, scenario: Scenario, *, tune: bool) -> None:
    """Check that browsers support the requested measurement.

    Raises:
        UsageError: They do not.
    """
    if scenario.name != "single-stream":
        raise UsageError(
            f"a browser is measured as a single stream, not as {scenario.name}",
            hint="leave --scenario out",
            where=device.name,
        )
    if tune:
        raise UsageError(
            "edgepack holds no clocks for a browser",
            hint="leave --tune out",
            where=device.name,
        )


def require_browser(device: Device) -> BrowserEntry:
    """Return a browser's entry, whose target has to be for browsers.

    Raises:
        UsageError: The device is no browser.
        ProfileError: Its target is for something else.
    """
    if not isinstance(device.entry, BrowserEntry):
        raise UsageError(f"{device.name} is no browser", hint="see devices.yaml", where=device.name)
    found = load_profile(device.target).device.os
    if found != "browser":
        raise ProfileError(
            f"'transport: browser' reaches browsers, and target {device.target!r} is for {found}",
            hint=f"set 'target: web' for {device.name!r} in devices.yaml, or another one for"
            " browsers: edgepack targets list",
            where=device.name,
        )
    return device.entry


def find_runtime(device: Device) -> tuple[Path, str]:
    """Return the folder of a device's onnxruntime-web, and its version.

    Raises:
        ToolError: It is not there.
    """
    folder = Path(require_browser(device).runtime).expanduser().absolute()
    folder = folder.parent if folder.name == "dist" else folder
    try:
        version = str(json.loads((folder / "package.json").read_text("utf-8"))["version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _make_runtime_error(device, f"{folder} has no {PACKAGE}") from error
    if not (folder / "dist").is_dir():
        raise _make_runtime_error(device, f"{folder} has no folder 'dist'")
    return folder / "dist", version


def require_pinned(device: Device, version: str, pins: Mapping[str, str]) -> None:
    """Check that an onnxruntime-web is the one that a target, or a bundle, pins.

    Raises:
        ToolError: It is another.
    """
    pinned = pins.get(PACKAGE, "")
    wanted = pinned if not pinned[:1].isdigit() else f"=={pinned}"
    if version not in SpecifierSet(wanted):
        raise _make_runtime_error(device, f"{PACKAGE} is {version} there, and {pinned} is pinned")


def _make_runtime_error(device: Device, problem: str) -> ToolError:
    pinned = load_profile(device.target).runtime.packages.get(PACKAGE, "")
    return ToolError(
        problem,
        hint=f"npm install {PACKAGE}@{pinned}, and name its folder node_modules/{PACKAGE} with"
        " 'runtime' in devices.yaml",
        where=device.name,
    )


def list_page_files(runtime: Path) -> dict[str, Path | bytes]:
    """Return what a page may fetch without a bundle, by path: its own files and onnxruntime-web."""
    page = find_ondevice_dir() / _PAGE
    return {
        "": page / "page.html",
        "page.js": page / "page.js",
        "worker.js": page / "worker.js",
        "canary.onnx": canary.MODEL,
        **{
            f"onnxruntime/{path.name}": path
            for path in sorted(runtime.iterdir())
            if path.suffix in (".mjs", ".wasm")
        },
    }


@contextmanager
def open_browser(
    bundle: Bundle, device: Device, purpose: str, *, wait_s: float, progress: Progress
) -> Iterator[BrowserHarness]:
    """Serve a bundle to a device's browser, and lease the device.

    Args:
        bundle: What is run.
        device: Where.
        purpose: What the lease is for, without the bundle: ``bench``.
        wait_s: How long to wait while others hold it.
        progress: Where to report.

    Raises:
        DeviceError: The page cannot be served; others hold the device.
        ToolError: There is no onnxruntime-web of the pinned version.
        ProfileError: The device's target is not for browsers.
        BundleError: The bundle shares its code, and that is of another edgepack.
    """
    entry = require_browser(device)
    runtime, version = find_runtime(device)
    require_pinned(device, version, bundle.manifest.runtime)
    served = list_page_files(runtime)
    served |= {f"bundle/{path}": data for path, data in _list_shared_code(bundle, device).items()}
    paths = [MANIFEST, *(file.path for file in bundle.manifest.files)]
    served |= {f"bundle/{path}": bundle.path / path for path in paths}
    purpose = f"{purpose} {bundle.manifest.id}"
    with (
        connect(device.host) as host,
        leased(host, device.host, purpose, wait_s=wait_s, progress=progress),
        serving(device.name, entry.listen, served) as site,
    ):
        pages = Pages(site, entry, progress.note)
        yield BrowserHarness(pages, device, bundle, host, progress.note)


def _list_shared_code(bundle: Bundle, device: Device) -> dict[str, bytes]:
    """Return the code that a bundle shares with others; nothing where it has all of it."""
    if any(file.path == _OPENER for file in bundle.manifest.files):
        return {}
    built = bundle.manifest.built_on.tools.get("edgepack")
    if built != edgepack.__version__:
        raise BundleError(
            f"{bundle.manifest.id} shares its code, and that is edgepack {built}'s, not"
            f" {edgepack.__version__}'s",
            hint="build it again, or measure it with the edgepack that built it",
            where=device.name,
        )
    return list_code(load_profile(device.target))


def answer_samples(
    harness: BrowserHarness, inputs: Inputs, numbers: Sequence[int], variant: str | None
) -> Generator[SampleAnswer]:
    """Yield the answer to each sample, in order, from one process run.

    The page runs each sample by itself, as an app does.

    Args:
        harness: Of the bundle.
        inputs: Gives the inputs of a sample.
        numbers: Which samples.
        variant: This one, or None for the first that works.

    Raises:
        SamplesError: A sample does not fit the model.
        RemoteCommandError: The page failed, or no variant works there.
        TooSlowError: A sample takes minutes.
        DeviceError: The page is gone.
    """
    with harness.opened() as page:
        page.open(variant)
        sent = ((number, encode(inputs(number))) for number in numbers)
        most = 1
        while piece := _join_samples(sent, most):
            began = time.monotonic()
            found = page.run(b"".join(piece.values()), harness.load_timeout_s)
            most = _find_most(len(piece), time.monotonic() - began, len(found))
            answers = BytesIO(found)
            for number in piece:
                try:
                    answer = read_answer(answers.read)
                except FrameError as error:
                    raise RemoteCommandError(
                        f"the page answered sample {number} with something else: {error}",
                        hint="build the bundle again if it is of another edgepack",
                        where=harness.device.name,
                    ) from error
                if answer.error:
                    raise SamplesError(
                        f"the browser refused sample {number}: {answer.error}",
                        hint="use the samples that the project names under 'evaluation'",
                    )
                yield answer


def _join_samples(sent: Iterator[tuple[int, bytes]], most: int) -> dict[int, bytes]:
    """Return the next samples that are sent together; none after the last."""
    piece: dict[int, bytes] = {}
    size = 0
    while len(piece) < most and size < _PIECE_BYTES and (found := next(sent, None)):
        number, data = found
        piece[number] = data
        size += len(data)
    return piece


def _find_most(count: int, took_s: float, answer_bytes: int) -> int:
    """Return how many samples may be sent together, after so many were answered."""
    in_time = int(count * _PIECE_S / max(took_s, 1e-3))
    return max(
        1, min(_PIECE_GROWTH * count, in_time, count * _PIECE_ANSWER_BYTES // max(1, answer_bytes))
    )
