"""Builds a target's onnxruntime on one device, proves it there, and keeps it for all others."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from edgepack.deploy.fleet.store import ProvisionOptions
from edgepack.deploy.operations import audited, provision_device
from edgepack.devices.inventory import Device
from edgepack.devices.probing import probe
from edgepack.devices.provisioning.building import BuildState, DeviceBuild
from edgepack.devices.provisioning.needs import load_provisioned_profile
from edgepack.devices.provisioning.store import KeptRuntime, RuntimeStore
from edgepack.devices.transport import Transport
from edgepack.devices.transports import connect
from edgepack.errors import RemoteCommandError, UsageError

POLL_S = 5.0
_WAIT_S = 3600.0
"""How long to wait while others hold the device: after hours of building that is little."""


def build_runtime(
    device: Device,
    *,
    follow: bool = True,
    store: RuntimeStore | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> KeptRuntime | BuildState:
    """Build a target's runtime on a device, or go on with that, and keep it once it is proven.

    The build runs on when this process or the connection ends. Called again it follows what runs,
    and goes on with what was cut off. What is built is installed on the device, and each provider
    of the target runs a convolution there, before it is kept.

    Args:
        device: Where; it has to have what the target's instructions need.
        follow: Wait until it has ended; else it is started, and how it stands is returned.
        store: Where it is kept; default: the user's.
        progress: Called with each stage and the build's newest line.

    Raises:
        UsageError: The target has no instructions, or the inventory names a Python for the device.
        DeviceError: The device cannot be reached, or lacks something for the build; or others use
            it for an hour when the build has ended.
        RemoteCommandError: The build failed or was killed, or a provider does not work in what was
            built.
        ToolError: The runtime cannot be kept, or a wheel that it needs cannot be fetched.
    """
    with connect(device) as transport, tempfile.TemporaryDirectory(prefix="edgepack-") as name:
        build = _open_build(device, transport)
        if build.look().exit_code != 0:
            _start(build, progress)
            state = build.look()
            if not follow:
                return state
            _follow(build, state, progress)
        progress("fetching the wheel")
        wheel, about = build.fetch(Path(name))
        about["device"] = probe(device, transport).model
        options = ProvisionOptions(wheels=[wheel], wait_s=_WAIT_S)
        made = provision_device(device, options, require_all=True, progress=progress)
        wanted = {variant.providers[0].name for variant in build.profile.variants}
        about["providers"] = ", ".join(name for name in made.providers if name in wanted)
        kept = (store or RuntimeStore()).add(wheel, build.profile, about)
        build.remove()
        return kept


def look_at_build(device: Device) -> BuildState:
    """Return how the build of a device's runtime stands.

    Raises:
        UsageError: The target has no instructions, or the inventory names a Python for the device.
        DeviceError: The device cannot be reached, or its answer cannot be read.
    """
    with connect(device) as transport:
        return _open_build(device, transport).look()


def stop_build(device: Device, *, remove: bool = False) -> None:
    """Stop the build of a device's runtime; what is built stays there, unless it is removed.

    Raises:
        UsageError: The target has no instructions, or the inventory names a Python for the device.
        DeviceError: The device cannot be reached, or the build does not end.
    """
    with connect(device) as transport, audited("build", device) as operation:
        build = _open_build(device, transport)
        build.remove() if remove else build.stop()
        operation.describe(detail="removed" if remove else "stopped")


def _open_build(device: Device, transport: Transport) -> DeviceBuild:
    profile = load_provisioned_profile(device)
    if profile.runtime.build is None:
        raise UsageError(
            f"target {profile.id!r} has no instructions to build onnxruntime",
            hint="its providers come by edgepack device provision; instructions are 'runtime.build'"
            " in a target of your own",
        )
    root = probe(device, transport).root
    return DeviceBuild(device, transport, profile, profile.runtime.build, root)


def _start(build: DeviceBuild, progress: Callable[[str], None]) -> None:
    if build.look().runs:
        progress("following the build that runs there")
        return
    with audited("build", build.device) as operation:
        jobs = build.start()
        ref = build.instructions.ref
        operation.describe(detail=f"{build.instructions.source} {ref} in {build.folder}")
    progress(f"building {ref} in {build.folder} with {jobs} jobs at once")


def _follow(build: DeviceBuild, state: BuildState, progress: Callable[[str], None]) -> None:
    """Wait until the build has ended well."""
    while state.runs:
        time.sleep(POLL_S)
        state = build.look(state.log_bytes)
        lines = [line for line in state.log.splitlines() if line.strip()]
        if lines:
            progress(f"{len(state.done)} steps done: {lines[-1][:120]}")
    if state.exit_code == 0:
        return
    last = build.look().last_lines
    if state.exit_code is None and not state.done:
        raise RemoteCommandError(
            "what was built has been taken away meanwhile, as another command does that follows the"
            " build",
            hint="see whether it has kept the runtime: edgepack runtime list",
            where=build.device.name,
        )
    if state.exit_code is None:
        raise RemoteCommandError(
            f"the build ended without saying how: it was killed, or the device went off{last}",
            hint="run the command again: it goes on with the step that was cut off",
            where=build.device.name,
        )
    raise RemoteCommandError(
        f"the step {state.failed!r} of the build failed with exit code {state.exit_code}{last}",
        hint=f"see {build.folder}/log there, mend the cause, and run the command again: steps that"
        " are done stay done",
        where=build.device.name,
    )
