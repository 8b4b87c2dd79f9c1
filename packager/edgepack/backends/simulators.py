"""Which providers have a simulator that this machine can run, and which lacks."""

from __future__ import annotations

import platform

from edgepack.backends.base import Backend
from edgepack.base.schema import NotMeasured
from edgepack.model.simulating import Simulator, find_simulator
from edgepack.ondevice.runtime.edgepack_names import PLUGINS


def find_backend_simulator(backend: Backend) -> Simulator | NotMeasured | None:
    """Return the simulator of a provider's hardware; None where there is no such thing.

    Nothing is loaded. Where a machine of another kind or an installation is needed, that is said.
    """
    if backend.simulated_on is None:
        return None
    if (platform.system(), platform.machine()) != backend.simulated_on:
        system, machine = backend.simulated_on
        return NotMeasured(reason=f"its simulator is for {system} on {machine}")
    found = find_simulator(backend.plugin, PLUGINS[backend.provider])
    if found is None:
        return NotMeasured(
            reason=f"its simulator, {backend.plugin}, is not installed:"
            f" pip install 'edgepack[{backend.name}]'"
        )
    return found
