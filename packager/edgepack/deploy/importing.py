"""``edgepack device import``: many boards of a list into the inventory, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from edgepack.base.progress import Progress
from edgepack.base.team import is_in_team
from edgepack.deploy.adding import make_entry, write_probed
from edgepack.deploy.fleet.many import Outcome, do_on_devices
from edgepack.deploy.fleet.schedule import RolloutSettings
from edgepack.deploy.operations import audited
from edgepack.devices.importing import ListedDevice
from edgepack.devices.inventory import (
    AnyEntry,
    Device,
    SshEntry,
    find_inventory,
    load_inventory,
    require_free_name,
)
from edgepack.devices.ssh.host_keys import write_trusted
from edgepack.devices.ssh.trust import (
    UntrustedKey,
    fetch_untrusted,
    find_device_route,
    require_accepted,
)
from edgepack.errors import DeviceError, EdgepackError, UsageError
from edgepack.project.profile import load_profile

_UNKNOWN = "not-known-yet"


@dataclass(frozen=True)
class ImportedDevice:
    """A board of a list that is in the inventory now."""

    target: str
    host: str
    was_there: bool
    """Whether it was before, reached in the same way; then nothing was changed."""


@dataclass(frozen=True)
class _Looked:
    """What one host on the way to a board showed."""

    is_last: bool
    untrusted: UntrustedKey | None


def import_devices(  # noqa: PLR0913  (the command's options)
    boards: Sequence[ListedDevice],
    *,
    confirm: Callable[[str], bool],
    target: str | None = None,
    tags: Sequence[str] = (),
    password_env: str | None = None,
    parallel: int = 16,
    inventory: Path | None = None,
) -> list[Outcome[ImportedDevice]]:
    """Add boards to the inventory; one that cannot be does not keep the others from it.

    The host keys that are not known are shown together and trusted together, or none of them:
    first those of hosts on the way, then the boards'. A changed key is never among them. A board
    whose name the inventory has is left as it is; it is an error if that one is another board. Each
    is written as soon as it was probed, so that what was done stays if this is interrupted.

    Args:
        boards: What a list says; see :mod:`edgepack.devices.importing`.
        confirm: Asked with a text that shows the keys.
        target: The boards' target where the list names none; default: what the probe proposes.
        tags: More tags for all of them.
        password_env: The variable with the password, for boards whose list names none.
        parallel: How many boards at a time.
        inventory: The file to write; by default the team's database where there is one, else the
            file in use.

    Returns:
        An outcome for each board, in their order.

    Raises:
        UsageError: A name is listed twice, or there is no such target.
        ProfileError: The inventory is wrong.
    """
    _require_names_once(boards)
    profile = load_profile(target) if target else None
    path = find_inventory(inventory)
    known = load_inventory(inventory).devices if inventory is None or path.exists() else {}
    place = None if inventory is None and is_in_team() else path
    settings = RolloutSettings(parallel=parallel, tries=1)
    done: dict[str, Outcome[ImportedDevice]] = {}
    new: dict[str, SshEntry] = {}
    for board in boards:
        try:
            entry = _make_listed_entry(board, profile.id if profile else None, tags, password_env)
            there = _find_there(board.name, entry, known, path)
        except EdgepackError as error:
            done[board.name] = Outcome(board.name, None, error)
        else:
            if there is None:
                new[board.name] = entry
            else:
                done[board.name] = Outcome(board.name, there, None)
    fingerprints = {board.name: board.fingerprint or None for board in boards}
    devices = [Device(name, entry) for name, entry in new.items()]
    refused = _trust_together(devices, fingerprints, confirm, settings)

    def add(device: Device, _progress: Progress) -> ImportedDevice:
        entry = new[device.name]
        wanted = None if entry.target == _UNKNOWN else load_profile(entry.target)
        with audited("add", device) as operation:
            added = write_probed(device.name, entry, wanted, place, operation)
        return ImportedDevice(added.device.target, entry.host, was_there=False)

    done |= {name: Outcome(name, None, error) for name, error in refused.items()}
    trusted = [device for device in devices if device.name not in refused]
    done |= {each.device: each for each in do_on_devices(trusted, add, settings=settings)}
    return [done[board.name] for board in boards]


def _require_names_once(boards: Sequence[ListedDevice]) -> None:
    for name, times in Counter(board.name for board in boards).items():
        if times > 1:
            raise UsageError(f"{name!r} is listed {times} times", hint="name each board once")


def _make_listed_entry(
    board: ListedDevice, target: str | None, tags: Sequence[str], password_env: str | None
) -> SshEntry:
    """Return the entry of a board; its target may have to be proposed later.

    Raises:
        UsageError: It cannot be taken as it is listed.
        DeviceError: The variable with its password is not set.
    """
    from edgepack.devices.ssh.auth import require_password

    password = board.password_env or password_env
    if board.problem:
        raise UsageError(board.problem, hint=board.hint, where=board.name)
    if board.has_password and not password:
        raise UsageError(
            "the list has its password, and edgepack keeps none",
            hint="give the name of a variable that has it: --password-env NAME",
            where=board.name,
        )
    require_password(password, board.name)
    named = board.target or target
    return make_entry(
        {
            "target": load_profile(named).id if named else _UNKNOWN,
            "host": board.host,
            "user": board.user or None,
            "port": int(board.port) if board.port.isdecimal() else board.port or None,
            "key": str(Path(board.key).expanduser().absolute()) if board.key else None,
            "password_env": password,
            "ssh_config": board.ssh_config or None,
            "tags": list(dict.fromkeys([*board.tags, *tags])),
        }
    )


def _find_there(
    name: str, entry: SshEntry, known: Mapping[str, AnyEntry], path: Path
) -> ImportedDevice | None:
    """Return a board that the inventory has already; None if it has none of that name.

    Raises:
        UsageError: It has another one of that name, or the name cannot be one.
    """
    if name not in known:
        require_free_name(name, path)
        return None
    there = known[name]
    ways = [
        (each.host, each.user, each.port) if isinstance(each, SshEntry) else None
        for each in (there, entry)
    ]
    if ways[0] != ways[1]:
        raise UsageError(
            f"the inventory has another device {name!r}",
            hint="it was left as it is: rename or remove that one, or name this one differently",
            where=name,
        )
    return ImportedDevice(there.target, entry.host, was_there=True)


def _trust_together(
    devices: Sequence[Device],
    fingerprints: Mapping[str, str | None],
    confirm: Callable[[str], bool],
    settings: RolloutSettings,
) -> dict[str, EdgepackError]:
    """Make the keys known that the devices and the hosts on the way show, after one question.

    Returns:
        Why the others cannot be reached or trusted.
    """
    refused: dict[str, EdgepackError] = {}
    waiting = list(devices)
    for number in count(1):

        def look(device: Device, _progress: Progress, number: int = number) -> _Looked:
            route = find_device_route(device)
            return _Looked(number == len(route), fetch_untrusted(device, route, number))

        if not waiting:
            return refused
        outcomes = do_on_devices(waiting, look, settings=settings)
        refused |= {each.device: each.error for each in outcomes if each.error is not None}
        looked = {each.device: each.result for each in outcomes if each.result is not None}
        shown = {name: each.untrusted for name, each in looked.items() if each.untrusted}
        refused |= _judge_together(shown, fingerprints, confirm)
        waiting = [
            device
            for device in waiting
            if device.name not in refused and not looked[device.name].is_last
        ]
    return refused


def _judge_together(
    shown: Mapping[str, UntrustedKey],
    fingerprints: Mapping[str, str | None],
    confirm: Callable[[str], bool],
) -> dict[str, EdgepackError]:
    """Write the keys that are accepted, and return why others are not."""
    refused: dict[str, EdgepackError] = {}
    accepted: dict[str, UntrustedKey] = {}
    asked: dict[str, UntrustedKey] = {}
    for name, found in shown.items():
        fingerprint = fingerprints[name] if found.is_devices else None
        if fingerprint is not None:
            try:
                require_accepted(found, fingerprint, confirm)
                accepted[name] = found
            except DeviceError as error:
                refused[name] = error
        elif found.problem.kind == "changed":
            refused[name] = DeviceError(
                found.problem.error.problem,
                hint="find out whether it got a new key; only then: edgepack device add"
                f" {name} USER@HOST, which asks about that key",
                where=name,
            )
        else:
            asked[name] = found
    if asked and confirm(_format_question(asked)):
        accepted |= asked
    else:
        for name, found in asked.items():
            refused[name] = DeviceError(
                f"the host key {found.key.fingerprint} was not accepted",
                hint="compare it with what 'ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub'"
                " prints there, and run this again",
                where=name,
            )
    # A host on the way is that of many boards.
    for (host, key), name in {
        (each.host, each.key): name for name, each in accepted.items()
    }.items():
        with audited("trust", name, only_failure=True) as operation:
            write_trusted(host, key)
            operation.record_trust(host, key)
    return refused


def _format_question(asked: Mapping[str, UntrustedKey]) -> str:
    """Return a text that shows each host's key once, with the boards that it is for."""
    lines: dict[str, list[str]] = {}
    for name, found in asked.items():
        line = f"  {found.host}  {found.key.kind} {found.key.fingerprint}"
        lines.setdefault(line, []).append(name)
    shown = "\n".join(f"{line}  ({', '.join(names)})" for line, names in lines.items())
    return (
        f"these host keys are not known:\n{shown}\ncompare them with what 'ssh-keygen -lf"
        " /etc/ssh/ssh_host_ed25519_key.pub' prints there. Trust all of them?"
    )
