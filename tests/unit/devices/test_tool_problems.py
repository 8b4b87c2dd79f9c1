"""What programs say when a phone cannot be used, and what is made of it.

The outputs are as documented or shown in public: adb's source (packages/modules/adb), Android's
package manager and linker, Apple's developer forums (threads 712005, 666335), the issues
beeware/briefcase 377, callstack/agent-device 1527 and lionheart/openradar-mirror 17121.
"""

from __future__ import annotations

import re

import pytest
from edgepack.devices.phones.tool_problems import ADB_CAUSES, XCODE_CAUSES, Cause, explain
from edgepack.errors import (
    DeviceError,
    EdgepackError,
    RemoteCommandError,
    ToolError,
    UnreachableError,
)

ADB = [
    (
        "edgepack: cannot run 'adb': No such file or directory",
        ToolError,
        "there is no adb",
        "platform-tools",
    ),
    ("bash: line 1: exec: adb: not found", ToolError, "there is no adb", "platform-tools"),
    (
        (
            "error: device unauthorized.\nThis adb server's $ADB_VENDOR_KEYS is not set\n"
            "Try 'adb kill-server' if that seems wrong.\n"
            "Otherwise check for a confirmation dialog on your device."
        ),
        DeviceError,
        "has not authorized this adb",
        "Allow USB debugging",
    ),
    ("unauthorized", DeviceError, "has not authorized this adb", "Allow USB debugging"),
    ("error: device still authorizing", DeviceError, "has not authorized adb yet", "unlock it"),
    ("error: device offline", UnreachableError, "does not answer adb", "kill-server"),
    ("adb: device offline", UnreachableError, "does not answer adb", "kill-server"),
    ("error: device '8A1X0' not found", UnreachableError, "this serial", "adb devices -l"),
    ("adb: no devices/emulators found", UnreachableError, "this serial", "adb devices -l"),
    (
        (
            "error: insufficient permissions for device: user in plugdev group; are your udev rules"
            " wrong?\nSee [http://developer.android.com/tools/device.html] for more information"
        ),
        DeviceError,
        "may not use the phone's USB device",
        "udev",
    ),
    (
        (
            "* daemon not running; starting now at tcp:5037\nADB server didn't ACK\n"
            "* failed to start daemon\nadb: cannot connect to daemon"
        ),
        ToolError,
        "server does not start",
        "5037",
    ),
    ("error: closed", UnreachableError, "connection to the phone was lost", "cable"),
    (
        (
            "adb: error: failed to copy 'm.onnx' to '/data/local/tmp/m.onnx': remote write failed:"
            " No space left on device"
        ),
        DeviceError,
        "storage is full",
        "free some space",
    ),
    (
        (
            "adb: error: failed to copy 'm' to '/sdcard/x/m': remote couldn't create file:"
            " Permission"
            " denied"
        ),
        DeviceError,
        "may not write there",
        "/data/local/tmp",
    ),
    (
        (
            "adb: failed to install app.apk: Failure [INSTALL_FAILED_INSUFFICIENT_STORAGE:"
            " Failed to"
            " override installation location]"
        ),
        DeviceError,
        "storage is full",
        "free some space",
    ),
    (
        (
            "adb: failed to install a.apk: Failure [INSTALL_FAILED_UPDATE_INCOMPATIBLE: Existing"
            " package com.acme signatures do not match newer version; ignoring!]"
        ),
        DeviceError,
        "signed with another key",
        "uninstall",
    ),
    (
        (
            "adb: failed to install a.apk: Failure [INSTALL_FAILED_VERSION_DOWNGRADE: Downgrade"
            " detected: Update version code 1 is older than current 2]"
        ),
        DeviceError,
        "newer version",
        "uninstall",
    ),
    (
        (
            "adb: failed to install a.apk: Failure [INSTALL_FAILED_NO_MATCHING_ABIS: Failed"
            " to extract"
            " native libraries, res=-113]"
        ),
        DeviceError,
        "no native code",
        "ABI",
    ),
    (
        (
            "adb: failed to install a.apk: Failure [INSTALL_FAILED_OLDER_SDK: Failed parse during"
            " installPackageLI: Requires newer sdk version #30 (current version is #28)]"
        ),
        DeviceError,
        "older than the app's minSdk",
        "newer phone",
    ),
    (
        (
            "adb: failed to install a.apk: Failure [INSTALL_FAILED_USER_RESTRICTED: Install"
            " canceled by"
            " user]"
        ),
        DeviceError,
        "refused to install over USB",
        "Install via USB",
    ),
    (
        "adb: failed to install a.apk: Failure [INSTALL_FAILED_TEST_ONLY: installPackageLI]",
        DeviceError,
        "testOnly",
        "install -t",
    ),
    (
        (
            "adb: failed to install a.apk: Failure [INSTALL_PARSE_FAILED_NO_CERTIFICATES: Failed to"
            " collect certificates from base.apk]"
        ),
        DeviceError,
        "not signed",
        "debug",
    ),
    (
        "adb: failed to install a.apk: Failure [INSTALL_FAILED_DEXOPT]",
        DeviceError,
        "refused to install",
        "PackageInstaller",
    ),
    (
        "INSTRUMENTATION_STATUS: Error=Unable to find instrumentation info for: ComponentInfo{x/y}",
        DeviceError,
        "no such instrumentation",
        "pm list instrumentation",
    ),
    ("error: more than one device", DeviceError, "several phones", "disconnect"),
    (
        (
            "adb server version (41) doesn't match this client (39); killing...\n"
            "* daemon started successfully\nerror: closed"
        ),
        UnreachableError,
        "two versions of adb",
        "set 'adb'",
    ),
    ("cmd: Can't find service: package", UnreachableError, "still starting", "lock screen"),
    (
        (
            "adb: failed to install a.apk: Failure [INSTALL_FAILED_VERIFICATION_FAILURE:"
            " Package Verification Result]"
        ),
        DeviceError,
        "Play Protect",
        "Verify apps over USB",
    ),
    (
        "adb: failed to install a.apk: Failure [INSTALL_FAILED_OF_TOMORROW]",
        DeviceError,
        "refused to install",
        "PackageInstaller",
    ),
    (
        "INSTRUMENTATION_RESULT: shortMsg=Process crashed.\nINSTRUMENTATION_CODE: 0",
        RemoteCommandError,
        "crashed",
        "logcat",
    ),
    (
        'CANNOT LINK EXECUTABLE "./edgepack_measure": library "libonnxruntime.so" not found',
        DeviceError,
        "cannot load",
        "ABI",
    ),
]
XCODE = [
    (
        (
            "xcode-select: error: tool 'xcodebuild' requires Xcode, but active developer directory"
            " '/Library/Developer/CommandLineTools' is a command line tools instance"
        ),
        ToolError,
        "no Xcode",
        "xcode-select -s",
    ),
    (
        'xcrun: error: unable to find utility "devicectl", not a developer tool or in PATH',
        ToolError,
        "no Xcode",
        "Xcode 15",
    ),
    (
        (
            "xcrun: error: invalid active developer path"
            " (/Library/Developer/CommandLineTools), missing"
            " xcrun at: /Library/Developer/CommandLineTools/usr/bin/xcrun"
        ),
        ToolError,
        "no Xcode",
        "xcode-select -s",
    ),
    (
        (
            "You have not agreed to the Xcode license agreements. Please run 'sudo"
            " xcodebuild -license'"
            " from within a Terminal window to review and agree to the Xcode and Apple SDKs"
            " license."
        ),
        ToolError,
        "licence",
        "-license accept",
    ),
    (
        (
            "failed downloading 'https://download.onnxruntime.ai/pod-archive-onnxruntime-c-1.30.0.zip'"
            " which is required by binary target 'onnxruntime': downloadError(\"The network"
            ' connection was lost.")'
        ),
        ToolError,
        "cannot fetch the onnxruntime",
        "reaches the address",
    ),
    ("MyApp.app: errSecInternalComponent", DeviceError, "keychain is locked", "keychain_password"),
    (
        "Harness.app: User interaction is not allowed.",
        DeviceError,
        "keychain is locked",
        "keychain_password_env",
    ),
    (
        (
            "security: SecKeychainUnlock login.keychain-db: The user name or passphrase you"
            " entered is"
            " not correct."
        ),
        DeviceError,
        "does not open",
        "keychain_password_env",
    ),
    (
        (
            'error: Signing for "Harness" requires a development team. Select a development'
            " team in the"
            " Signing & Capabilities editor."
        ),
        DeviceError,
        "no such development team",
        "Accounts",
    ),
    (
        (
            "error: No profiles for 'edgepack.harness' were found: Xcode couldn't find any iOS App"
            " Development provisioning profiles matching 'edgepack.harness'."
        ),
        DeviceError,
        "cannot be signed",
        "build it once in Xcode",
    ),
    (
        (
            "Failed to install embedded profile: 0xe8008015 (A valid provisioning profile for this"
            " executable was not found.)"
        ),
        DeviceError,
        "cannot be signed",
        "build it once in Xcode",
    ),
    (
        (
            "Unable to launch edgepack.harness because it has an invalid code signature, inadequate"
            " entitlements or its profile has not been explicitly trusted by the user."
        ),
        DeviceError,
        "does not trust the developer",
        "Device Management",
    ),
    (
        "Error: The operation failed because Developer Mode is disabled.",
        DeviceError,
        "Developer Mode is off",
        "Privacy & Security",
    ),
    ("    • developerModeStatus: disabled", DeviceError, "Developer Mode is off", "restarts"),
    ("    • tunnelState: unavailable", UnreachableError, "no phone with this", "list devices"),
    (
        "Development cannot be enabled while your device is locked.",
        DeviceError,
        "phone is locked",
        "Auto-Lock",
    ),
    ("kAMDMobileImageMounterDeviceLocked", DeviceError, "phone is locked", "Auto-Lock"),
    (
        (
            "Error: The developer disk image could not be mounted on this device."
            " (com.apple.dt.CoreDeviceError error 12040 (0x2F08))"
        ),
        DeviceError,
        "cannot prepare",
        "Developer Mode",
    ),
    (
        (
            "xcodebuild: error: Unable to find a destination matching the provided destination"
            " specifier:\n\t\t{ id:6bce7c }"
        ),
        UnreachableError,
        "no phone with this identifier",
        "devicectl list devices",
    ),
]


def of(causes: tuple[Cause, ...], cases: list) -> list:  # type: ignore[type-arg]
    return [pytest.param(causes, *case, id=case[0][:40]) for case in cases]


@pytest.mark.parametrize(
    ("causes", "output", "kind", "problem", "hint"),
    [*of(ADB_CAUSES, ADB), *of(XCODE_CAUSES, XCODE)],
)
def test_output_is_explained_with_its_cause_and_what_to_do(
    causes: tuple[Cause, ...], output: str, kind: type[EdgepackError], problem: str, hint: str
) -> None:
    error = explain(causes, output, device="pixel")
    assert type(error) is kind
    assert problem in error.problem
    assert hint in error.hint
    assert error.where == "pixel"
    assert error.problem.splitlines()[1].removeprefix("  | ") in output


def test_output_is_explained_when_a_terminal_has_rewritten_its_line() -> None:
    said = "[ 50%] /data/a\radb: error: device 'x' not found\r\n"
    assert isinstance(explain(ADB_CAUSES, said, device="pixel"), UnreachableError)
    torn = "adb: error: failed to copy 'a\rb' to 'c': Permission denied"
    assert explain(ADB_CAUSES, torn, device="pixel") is None


@pytest.mark.parametrize(
    "output",
    ["", "1 file pushed, 0 skipped.", "device", "Success", "** TEST EXECUTE SUCCEEDED **"],
)
@pytest.mark.parametrize("causes", [ADB_CAUSES, XCODE_CAUSES])
def test_output_is_not_explained_when_nothing_is_wrong(
    causes: tuple[Cause, ...], output: str
) -> None:
    assert explain(causes, output, device="pixel") is None


@pytest.mark.parametrize(
    ("causes", "cases"), [(ADB_CAUSES, ADB), (XCODE_CAUSES, XCODE)], ids=["adb", "xcode"]
)
def test_every_cause_has_an_output_when_causes_are_listed(
    causes: tuple[Cause, ...],
    cases: list,  # type: ignore[type-arg]
) -> None:
    outputs = [case[0] for case in cases]
    unseen = [
        cause.problem
        for cause in causes
        if not any(re.search(cause.said, output, re.MULTILINE) for output in outputs)
    ]
    assert unseen in ([], ["the connection to the phone was lost"])
