"""Selects a command's devices: ``pi5``, ``tag:lab``, ``backend:tensorrt``, ``all``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from edgepack.devices.inventory import Device, find_inventory, load_devices, load_inventory
from edgepack.errors import UsageError, suggest_nearest
from edgepack.project.profile import find_target_files, load_profile

ALL = "all"


@cache
def _list_backends(target: str) -> Sequence[str]:
    """Return the backends of a target's variants; none if there is no such target.

    A command that uses the device reports the missing target.
    """
    if target not in find_target_files():
        return []
    return sorted({variant.backend for variant in load_profile(target).variants})


PROPERTIES: dict[str, Callable[[Device], Sequence[str]]] = {
    "tag": lambda device: device.entry.tags,
    "target": lambda device: [device.target],
    "backend": lambda device: _list_backends(device.target),
}
"""The properties that select devices, as ``WORD:VALUE``, and a device's values for each."""


def select_devices(words: Sequence[str], inventory: Path | None = None) -> list[Device]:
    """Return the devices that any of the words selects, each once, ordered by name.

    A word is a device's name, ``tag:NAME``, ``target:ID``, ``backend:NAME`` or ``all``. Only the
    name ``local`` selects this machine, unless the inventory lists it.

    Raises:
        UsageError: A word selects nothing, or there are no words; the error names all such words.
        ProfileError: The inventory is wrong.
    """
    named = load_devices(inventory)
    listed = {name: named[name] for name in load_inventory(inventory).devices}
    chosen = {word: _choose_devices(word, named, listed) for word in words}
    empty = [word for word, devices in chosen.items() if not devices]
    if empty or not chosen:
        raise _make_nothing_error(empty, named, listed, inventory)
    found = {device.name: device for devices in chosen.values() for device in devices}
    return [found[name] for name in sorted(found)]


def is_one_device(words: Sequence[str]) -> bool:
    """Return whether the words are only one device's name, and so select no other."""
    return len(words) == 1 and words[0] != ALL and ":" not in words[0]


def complete_selection(incomplete: str) -> list[str]:
    """Return all words with this beginning: names, ``all``, and the devices' properties."""
    named = load_devices()
    properties = {
        f"{word}:{value}"
        for word, values in PROPERTIES.items()
        for device in named.values()
        for value in values(device)
    }
    return [word for word in [*named, ALL, *sorted(properties)] if word.startswith(incomplete)]


def _choose_devices(
    word: str, named: Mapping[str, Device], listed: Mapping[str, Device]
) -> list[Device]:
    if word in named:
        return [named[word]]
    if word == ALL:
        return list(listed.values())
    property_, _, value = word.partition(":")
    values = PROPERTIES.get(property_)
    return [device for device in listed.values() if values and value in values(device)]


def _make_nothing_error(
    empty: Sequence[str],
    named: Mapping[str, Device],
    listed: Mapping[str, Device],
    inventory: Path | None,
) -> UsageError:
    place = find_inventory(inventory)
    if not empty:
        return UsageError(
            "no device is chosen",
            hint="name one, or choose several: --device NAME, --device tag:NAME,"
            " --device target:ID, --device backend:NAME, --device all",
            where="--device",
        )
    said, near = [], []
    for word in empty:
        property_, colon, value = word.partition(":")
        if word == ALL:
            said.append("device at all")
            near.append("edgepack device add NAME USER@HOST")
        elif colon and property_ in PROPERTIES:
            said.append(f"device with the {property_} {value!r}")
            values = PROPERTIES[property_]
            near.append(
                suggest_nearest(value, {v for device in listed.values() for v in values(device)})
            )
        elif colon:
            said.append(f"property {property_!r} to choose devices by")
            near.append(suggest_nearest(property_, PROPERTIES))
        else:
            said.append(f"device {word!r}")
            near.append(
                f"{suggest_nearest(word, named)} (edgepack device list), or add it:"
                f" edgepack device add {word} USER@HOST"
            )
    return UsageError(
        f"there is no {', and no '.join(said)} in {place}", hint="; ".join(near), where="--device"
    )
