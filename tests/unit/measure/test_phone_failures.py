"""What a user reads when the measuring program fails in an app, where what it prints is lost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from edgepack.devices.inventory import AdbEntry, AppleEntry, Device
from edgepack.devices.phones.adb import Adb
from edgepack.devices.phones.stage import make_stage
from edgepack.devices.phones.xcode import Xcode
from edgepack.devices.transport import CommandResult
from edgepack.errors import RemoteCommandError, UnreachableError
from edgepack.measure.phones.android_app import AppPhone
from edgepack.measure.phones.apple import ApplePhone

SERIAL = "8A1X0ABCD"
PRINTED = "onnxruntime: node Conv_3 wants 3 GB (conv.cc:12 Run)\n"
CRASHED = "INSTRUMENTATION_RESULT: shortMsg=Process crashed.\nINSTRUMENTATION_CODE: 0\n"
NO_LIBRARY = """\
INSTRUMENTATION_RESULT: shortMsg=java.lang.UnsatisfiedLinkError
INSTRUMENTATION_RESULT: longMsg=java.lang.UnsatisfiedLinkError: dlopen failed: library "m" not found
INSTRUMENTATION_CODE: 0
"""
LOGGED = """\
F/DEBUG   : *** *** *** *** *** *** *** *** *** *** *** *** *** *** *** ***
F/DEBUG   : Build fingerprint: 'google/shiba/shiba:15/AP4A/1:user/release-keys'
F/DEBUG   : Cmdline: edgepack.measure
F/DEBUG   : pid: 4711, tid: 4730, name: Instr: edgepack  >>> edgepack.measure <<<
F/DEBUG   : signal 11 (SIGSEGV), code 1 (SEGV_MAPERR), fault addr 0x0000000000000010
F/DEBUG   :     x0  0000000000000000  x1  0000007b2c3d4e5f
F/DEBUG   :       #00 pc 00000000000a1b2c  /data/app/lib/arm64/libonnxruntime.so (BuildId: a1)
I/ActivityManager: Process edgepack.measure (pid 4711) has died: fg  TOP
I/ActivityManager: Process com.acme (pid 1) has died: cch CAC
"""
"""In the form of Android's own tests of its crash dumps."""
TEST_CRASHED = """\
Testing failed:
\tHarness:
\t\tHarness (4711) encountered an error (Early unexpected exit, operation never finished)
** TEST EXECUTE FAILED **
"""

PIXEL = Device("pixel", AdbEntry(transport="adb", serial=SERIAL, target="android"))
Said = tuple[str, int, str]
"""Some words of a command, its exit code, and what it prints."""


@dataclass
class FakeHost:
    """A machine whose programs end and print as is said of their words, else with 0 and nothing."""

    said: Sequence[Said]
    name: str = "host"
    host_key: str | None = None
    commands: list[str] = field(default_factory=list)

    def run(self, argv: Sequence[str], **_: Any) -> CommandResult:
        line = " ".join(argv)
        self.commands.append(line)
        found = ((code, text) for words, code, text in self.said if words in line)
        code, text = next(found, (0, ""))
        return CommandResult(tuple(argv), code, text.encode(), b"")

    def send(self, argv: Sequence[str], chunks: Iterable[bytes], **_: Any) -> CommandResult:
        list(chunks)
        return CommandResult(tuple(argv), 0, b"", b"")


def in_app(*said: Said) -> AppPhone:
    entry = AdbEntry(transport="adb", serial=SERIAL, target="android", inside="app")
    adb = Adb(Device("pixel", entry), FakeHost(said))  # type: ignore[arg-type]
    root = PurePosixPath("/data/local/tmp/edgepack")
    return AppPhone(adb, root / "tiny" / "0", root / "tools" / "0", {}, [Path("app.apk")])


def on_iphone(*said: Said) -> ApplePhone:
    entry = AppleEntry(
        transport="apple", udid="00008110-000A1B2C3D4E5F6A", team="ABCDE12345", target="ios"
    )
    mac = FakeHost([*said, ("find ", 0, "/tmp/built/Harness.xctestrun\n")])
    stage = PurePosixPath("/tmp/stage")
    return ApplePhone(Xcode(Device("iphone", entry), mac), stage)  # type: ignore[arg-type]


def failure(phone: AppPhone | ApplePhone) -> RemoteCommandError:
    with pytest.raises(RemoteCommandError) as caught:
        phone.measure(["check"], None, timeout_s=5).check("it", device="d", hint="h")
    return caught.value


def lines_of(error: RemoteCommandError) -> list[str]:
    return [line.removeprefix("  | ") for line in error.problem.splitlines()]


def test_crash_in_an_android_app_is_told_with_what_was_printed_and_logged() -> None:
    phone = in_app(("am instrument", 0, CRASHED), (".json.log", 0, PRINTED), ("logcat", 0, LOGGED))
    error = failure(phone)
    logged = LOGGED.splitlines()
    assert lines_of(error)[0] == "the measuring app crashed on the phone"
    assert lines_of(error)[2:] == [PRINTED.strip(), logged[4], logged[6], logged[7]]
    assert f"adb -s {SERIAL} logcat" in error.hint


def test_crash_in_an_android_app_is_read_from_the_log_of_this_run_alone() -> None:
    phone = in_app(("am instrument", 0, CRASHED), ("date +%s", 0, "1763800000\n"))
    failure(phone)
    host = phone.host
    assert isinstance(host, FakeHost)
    assert any("logcat" in line and "-t 1763800000.0" in line for line in host.commands)
    of_others = in_app(
        ("am instrument", 0, CRASHED), ("logcat", 0, LOGGED.replace("measure", "other"))
    )
    assert len(lines_of(failure(of_others))) == 2


def test_app_that_cannot_load_its_library_is_told_with_androids_words() -> None:
    error = failure(in_app(("am instrument", 0, NO_LIBRARY)))
    assert 'dlopen failed: library "m" not found' in error.problem
    assert "inside: shell" in error.hint


@pytest.mark.parametrize(
    "phone",
    [
        in_app(("am instrument", 0, "INSTRUMENTATION_RESULT: exit=2\n"), (".json.log", 0, PRINTED)),
        on_iphone(
            (
                "cat /tmp/stage/fetched/answer",
                0,
                json.dumps(
                    {
                        "exit": 2,
                        "before": {"thermal_state": 0, "low_power_mode": False},
                        "after": {"thermal_state": 0, "low_power_mode": False},
                        "facts": {
                            "system": "iOS",
                            "version": "18.1",
                            "model": "iPhone16,1",
                            "boot": "1",
                            "cpu_flags": [],
                            "simulator": False,
                            "debugged": False,
                        },
                    }
                ),
            ),
            (".json.log", 0, PRINTED),
        ),
    ],
    ids=["android", "ios"],
)
def test_program_that_fails_in_an_app_is_told_with_what_it_printed(
    phone: AppPhone | ApplePhone,
) -> None:
    assert lines_of(failure(phone)) == ["it failed with exit code 2", PRINTED.strip()]


def test_crash_in_an_iphone_app_is_told_with_what_was_printed() -> None:
    error = failure(on_iphone(("test-without-building", 65, ""), (".json.log", 0, PRINTED)))
    assert lines_of(error)[1:] == [PRINTED.strip()]


def test_crash_in_an_iphone_app_is_told_when_xcodebuild_calls_it_a_success() -> None:
    error = failure(
        on_iphone(("test-without-building", 0, TEST_CRASHED), ("edgepack/answer-", 1, ""))
    )
    telling = [TEST_CRASHED.splitlines()[number].strip() for number in (0, 2)]
    assert lines_of(error)[1:] == telling


def test_connection_that_is_lost_is_told_when_adb_prints_nothing() -> None:
    host = FakeHost([("get-state", 0, "device\n"), ("shell", 255, "")])
    with pytest.raises(UnreachableError, match="connection to the phone was lost"):
        Adb(PIXEL, host).shell(["edgepack_measure"])  # type: ignore[arg-type]


def test_command_that_itself_ends_with_the_code_of_a_lost_connection_has_ended() -> None:
    host = FakeHost([("get-state", 0, "device\n"), ("shell", 255, "Error: no such service")])
    ended = Adb(PIXEL, host).shell(["am", "instrument"])  # type: ignore[arg-type]
    assert ended.exit_code == 255


def test_program_is_the_process_that_adbd_hangs_up_on() -> None:
    host = FakeHost([])
    Adb(PIXEL, host).shell(["edgepack_measure", "check"], folder="/a b")  # type: ignore[arg-type]
    assert host.commands[0].endswith("cd '/a b' && exec edgepack_measure check")


def test_files_for_a_phone_lie_where_its_lease_does() -> None:
    place = f".local/share/edgepack/phones/{SERIAL}"
    host = FakeHost([("sh -c", 0, f"Welcome!\nstage /home/bench/{place}/stage\n")])
    assert make_stage(PIXEL, host) == PurePosixPath(f"/home/bench/{place}/stage")  # type: ignore[arg-type]
    assert host.commands[0].endswith(f"sh {place}")
    with pytest.raises(RemoteCommandError, match="printed 'Welcome!'"):
        make_stage(PIXEL, FakeHost([("sh -c", 0, "Welcome!")]))  # type: ignore[arg-type]
