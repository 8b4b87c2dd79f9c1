"""Explains error messages of the programs that reach phones, and says what to do.

Each cause has a pattern of its message. Sources: the texts of adb's own source (adb.cpp,
adb_client.cpp, transport.cpp, adb_install.cpp in packages/modules/adb) and of the package manager
(``PackageManager.java``, ``INSTALL_FAILED_*``); bionic's linker; Apple's documentation of
devicectl, ``man xcode-select``, and the forum post "Resolving errSecInternalComponent errors during
code signing" (thread 712005); SwiftPM's Diagnostics.swift. The tests have outputs of these programs
from public sources; we have produced none of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from edgepack.base.processes import ProgramResult
from edgepack.errors import (
    DeviceError,
    EdgepackError,
    RemoteCommandError,
    ToolError,
    UnreachableError,
)


@dataclass(frozen=True)
class Cause:
    """A problem, as a program reports it."""

    said: str
    """A regular expression for a line of the program's output."""
    problem: str
    """What that means."""
    hint: str
    """What to do about it."""
    error: type[EdgepackError] = DeviceError

    def as_error(self, device: str, line: str = "", **known: str) -> EdgepackError:
        """Return the error, with the line that reports it; ``known`` fills in words of the hint."""
        problem = f"{self.problem}\n  | {line.strip()}" if line else self.problem
        hint = self.hint
        for word, value in known.items():
            hint = hint.replace(word, value)
        return self.error(problem, hint=hint, where=device)


def explain(
    causes: Sequence[Cause], output: str, *, device: str, **known: str
) -> EdgepackError | None:
    """Return the error for the first cause that a program's output names; None if it names none.

    Args:
        causes: Those that are known.
        output: What the program printed.
        device: The device's name.
        known: The values for words in hints, such as ``SERIAL``.
    """
    lines = output.splitlines()
    for cause in causes:
        for line in lines:
            if re.search(cause.said, line):
                return cause.as_error(device, line, **known)
    return None


def join_output(result: ProgramResult) -> str:
    """Return all that a program printed, stderr first."""
    return result.stderr.decode("utf-8", "replace") + "\n" + result.text


_ADB = r"^(?:adb|error)(?:: error)?: "
LOST = Cause(
    rf"{_ADB}closed|{_ADB}protocol fault|{_ADB}device '[^']*' disconnected",
    "the connection to the phone was lost",
    "check the cable and that the phone stays awake and attached, then try again; an adb of another"
    " version on that machine ends the connections of this one",
    UnreachableError,
)
ADB_CAUSES = (
    Cause(
        r"(?:cannot run 'adb'|\badb: (?:command )?not found|cannot run '[^']*/adb')",
        "there is no adb on the machine that has the phone",
        "install the Android SDK's platform-tools there, or set 'adb' of the device in devices.yaml"
        " to its path",
        ToolError,
    ),
    Cause(
        rf"{_ADB}device still authorizing",
        "the phone has not authorized adb yet",
        "unlock it and answer 'Allow USB debugging?', then try again",
    ),
    Cause(
        rf"{_ADB}device unauthorized|^unauthorized$",
        "the phone has not authorized this adb",
        "unlock it and accept 'Allow USB debugging?', with 'Always allow from this computer'; if it"
        " does not ask: Developer options, Revoke USB debugging authorisations, plug it in again",
    ),
    Cause(
        rf"{_ADB}device offline|^offline$",
        "the phone is attached, but does not answer adb",
        "plug it in again, unlock it, or restart adb there: adb kill-server",
        UnreachableError,
    ),
    Cause(
        rf"{_ADB}insufficient permissions for device|^no permissions",
        "the user of that machine may not use the phone's USB device",
        "on Linux, install the udev rules (apt install android-sdk-platform-tools-common) and add"
        " the user to the group plugdev, then plug the phone in again",
    ),
    Cause(
        rf"{_ADB}device '[^']*' not found|{_ADB}no devices/emulators found|{_ADB}device not found",
        "no phone with this serial is attached to that machine",
        "see which there are with 'adb devices -l', and compare with 'serial' in devices.yaml; a"
        " charging cable may carry no data, and one on the network needs 'adb connect SERIAL'",
        UnreachableError,
    ),
    Cause(
        rf"failed to start daemon|cannot connect to daemon|{_ADB}failed to check server version",
        "adb's server does not start on that machine",
        "run 'adb kill-server' and 'adb start-server' there: another program may hold port 5037",
        ToolError,
    ),
    Cause(
        rf"{_ADB}more than one device",
        "several phones with this serial are attached to that machine",
        "unplug all but one, or 'adb disconnect' the one that is reached over the network",
    ),
    Cause(
        r"adb server version \(\d+\) doesn't match this client",
        "two versions of adb are used on that machine, and each ends the other's server",
        "use only one: set 'adb' of the device in devices.yaml to the path of the one that others"
        " use there",
        UnreachableError,
    ),
    LOST,
    Cause(
        r"Can't find service: \w+|Could not access the Package Manager",
        "the phone is still starting",
        "wait until its lock screen shows, unlock it, then try again",
        UnreachableError,
    ),
    Cause(
        r"No space left on device|INSTALL_FAILED_INSUFFICIENT_STORAGE",
        "the phone's storage is full",
        "free some space on it: what edgepack keeps there lies under 'root' of the device, by"
        " default /data/local/tmp/edgepack",
    ),
    Cause(
        r"INSTALL_FAILED_UPDATE_INCOMPATIBLE",
        "the phone has the app already, signed with another key",
        "remove it for all users of the phone: adb -s SERIAL uninstall edgepack.measure",
    ),
    Cause(
        r"INSTALL_FAILED_VERSION_DOWNGRADE",
        "the phone has a newer version of the app",
        "remove it for all users of the phone: adb -s SERIAL uninstall edgepack.measure",
    ),
    Cause(
        r"INSTALL_FAILED_NO_MATCHING_ABIS",
        "the app has no native code for the phone's processor",
        "build it for the phone's ABI: adb -s SERIAL shell getprop ro.product.cpu.abi",
    ),
    Cause(
        r"INSTALL_FAILED_OLDER_SDK",
        "the phone's Android is older than the app's minSdk",
        "take a newer phone, or a target with a lower 'min_version'",
    ),
    Cause(
        r"INSTALL_FAILED_USER_RESTRICTED|INSTALL_FAILED_ABORTED",
        "the phone refused to install over USB",
        "switch on 'Install via USB' in its Developer options, and accept the question on its"
        " screen",
    ),
    Cause(
        r"INSTALL_FAILED_TEST_ONLY",
        "the app is marked as testOnly",
        "install it with 'adb install -t', or build it with Gradle instead of from the IDE",
    ),
    Cause(
        r"INSTALL_FAILED_VERIFICATION_FAILURE",
        "Play Protect refused the app",
        "switch off 'Verify apps over USB' in the phone's Developer options",
    ),
    Cause(
        r"INSTALL_PARSE_FAILED_NO_CERTIFICATES",
        "the app is not signed",
        "build the debug variant, which is signed with the debug key: ./gradlew"
        " assembleDebugAndroidTest",
    ),
    Cause(
        r"INSTALL_(?:PARSE_)?FAILED_\w+",
        "the phone refused to install the app",
        "see what the code means: https://developer.android.com/reference/android/content/pm"
        "/PackageInstaller#EXTRA_STATUS_MESSAGE; 'inside: shell' in devices.yaml measures without"
        " an app",
    ),
    Cause(
        r"Unable to find instrumentation info|INSTRUMENTATION_FAILED",
        "the phone has no such instrumentation",
        "install the test app, and see its name with: adb -s SERIAL shell pm list instrumentation",
    ),
    Cause(
        r"shortMsg=Process crashed|INSTRUMENTATION_ABORTED",
        "the measuring app crashed on the phone",
        "see all of it: adb -s SERIAL logcat -d -b crash; measure another variant (--variant ID),"
        " or without an app: 'inside: shell' in devices.yaml",
        RemoteCommandError,
    ),
    Cause(
        r"CANNOT LINK EXECUTABLE|is for EM_\w+|has unexpected e_machine"
        r"|not executable: \d\d-bit ELF",
        "the phone cannot load the measuring program or its library",
        "it was built for another kind of processor, or for a newer Android: see 'package' of the"
        " device in devices.yaml, and the phone's ABI",
    ),
    Cause(
        rf"{_ADB}failed to copy .*Permission denied|remote couldn't create file: Permission denied",
        "the phone's shell may not write there",
        "set 'root' of the device in devices.yaml to a folder below /data/local/tmp",
    ),
)
"""Of adb, the package manager, the instrumentation and the phone's linker; more special ones
before more general ones."""

XCODE_CAUSES = (
    Cause(
        r"requires Xcode, but active developer directory|invalid active developer path"
        r"|unable to find utility \"(?:devicectl|xcodebuild|xctrace)\""
        r"|cannot run '(?:xcrun|xcodebuild)'|(?:xcrun|xcodebuild): (?:command )?not found",
        "the Mac has no Xcode, or its command line tools are selected instead",
        "install Xcode 15 or newer there, open it once, then: sudo xcode-select -s"
        " /Applications/Xcode.app",
        ToolError,
    ),
    Cause(
        r"You have not agreed to the Xcode license|Agreeing to the Xcode/iOS license",
        "Xcode's licence has not been accepted on the Mac",
        "accept it there: sudo xcodebuild -license accept",
        ToolError,
    ),
    Cause(
        r"which is required by binary target|downloaded artifact of binary target"
        r"|artifact of binary target '[^']*' has changed checksum",
        "the Mac cannot fetch the onnxruntime that the target pins",
        "check that it reaches the address above, without a proxy that changes the file; to"
        " delete what a failed download left: rm -rf ~/Library/Caches/org.swift.swiftpm",
        ToolError,
    ),
    Cause(
        r"errSecInternalComponent|User interaction is not allowed|errSecInteractionNotAllowed",
        "the Mac's keychain is locked, so nothing can be signed over SSH",
        "name the variable that holds its password as 'keychain_password_env' of the device, and"
        " let codesign use the key: security set-key-partition-list -S apple-tool:,apple: -s",
    ),
    Cause(
        r"The user name or passphrase you entered is not correct",
        "the password does not open the Mac's keychain",
        "set the variable that 'keychain_password_env' names to the password of that user's login"
        " keychain",
    ),
    Cause(
        r"requires a development team|No Account for Team|no team with ID",
        "Xcode on the Mac has no such development team",
        "sign in to it there (Xcode, Settings, Accounts), and compare with 'team' in devices.yaml",
    ),
    Cause(
        r"No signing certificate|No profiles for|requires a provisioning profile"
        r"|0xe8008015|0xe8008018|doesn't include signing certificate"
        r"|A valid provisioning profile for this executable was not found",
        "the app cannot be signed for this phone",
        "build it once in Xcode on the Mac, with the phone attached: that makes the certificate and"
        " the profile, and registers the phone",
    ),
    Cause(
        r"has not been explicitly trusted by the user|invalid code signature, inadequate",
        "the phone does not trust the developer yet",
        "on the phone: Settings, General, VPN & Device Management, trust the developer",
    ),
    Cause(
        r"Developer Mode (?:is )?disabled|requires Developer Mode|developerModeStatus: disabled",
        "Developer Mode is off on the phone",
        "on the phone: Settings, Privacy & Security, Developer Mode; it restarts then",
    ),
    Cause(
        r"[Dd]evice is locked|DeviceLocked|currently locked with a passcode|Unlock .* to Continue"
        r"|could not be, unlocked",
        "the phone is locked",
        "unlock it, and set Auto-Lock to Never while it is measured",
    ),
    Cause(
        r"developer disk image could not be mounted",
        "the Mac cannot prepare the phone for development",
        "unlock it, switch on Developer Mode, and open Xcode's Devices window once with the"
        " phone attached",
    ),
    Cause(
        r"Unable to find a (?:device|destination) matching|No devices? (?:found|matching)"
        r"|The specified device was not found|is not available because it is unpaired"
        r"|tunnelState: unavailable|pairingState: unpaired",
        "no phone with this identifier is attached to the Mac",
        "see which there are with 'xcrun devicectl list devices', and compare with 'udid' in"
        " devices.yaml; a phone that is new there has to be trusted first",
        UnreachableError,
    ),
    Cause(
        r"The network connection was lost|connection to the device was lost|Lost connection to",
        "the connection to the phone was lost",
        "check the cable and that the phone stays awake and attached, then try again",
        UnreachableError,
    ),
)
"""Of xcrun, xcodebuild, devicectl, codesign and security."""
