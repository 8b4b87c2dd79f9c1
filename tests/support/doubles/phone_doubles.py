"""A phone without a phone: programs that answer as adb, Android and the NDK do.

``adb`` runs what it is told in this machine's shell, with the words of Android's documentation and
source (packages/modules/adb); ``getprop``, ``dumpsys`` and ``settings`` print what phones were seen
to print (see tests/unit/bench/test_phone_conditions.py). Nothing of it was recorded here. The NDK's
compiler is this machine's, or one that makes a program of measure_double.py.
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgepack.devices.inventory import AdbEntry, AppleEntry, Device
from edgepack.measure.phones.native_build import API_LEVEL, TRIPLES

SERIAL = "8A1X0ABCD"
PROPERTIES = {
    "ro.build.version.release": "15",
    "ro.build.version.sdk": "35",
    "ro.product.cpu.abi": "arm64-v8a",
    "ro.product.manufacturer": "Google",
    "ro.product.model": "Pixel 8",
    "ro.soc.manufacturer": "Google",
    "ro.soc.model": "Tensor G3",
    "ro.vendor.build.fingerprint": "google/shiba/shiba:15/AP4A/1:user/release-keys",
}
THERMAL = """\
IsStatusOverride: false
Thermal Status: 0
Cached temperatures:
HAL Ready: true
Current temperatures from HAL:
	Temperature{mValue=31.5, mType=3, mName=skin, mStatus=0}
Current cooling devices from HAL:
"""
BATTERY = """\
Current Battery Service state:
  AC powered: false
  USB powered: true
  level: 84
  temperature: 296
"""

_ADB = """\
#!/bin/sh
here=$(dirname "$0")
if [ "$1" != -s ]; then echo "adb: more than one device/emulator" >&2; exit 1; fi
serial=$2 what=$3
shift 3
echo "$what $*" >> "$here/log"
for said in "$here"/says/*; do
  [ -e "$said" ] || continue
  case "$what $*" in
    *"$(cat "$said/command")"*) cat "$said/stdout"; cat "$said/stderr" >&2
      exit "$(cat "$said/code")";;
  esac
done
if [ "$serial" != "$(cat "$here/serial")" ]; then
  echo "error: device '$serial' not found" >&2
  exit 1
fi
case $what in
  get-state) echo device;;
  push)
    cp "$@" && echo "$1: 1 file pushed, 0 skipped. 12.3 MB/s (1 bytes in 0.001s)";;
  shell)
    [ "$1 $2 $#" = "-n -T 3" ] || exit 99
    PATH=$here/phone:/usr/bin:/bin exec sh -c "$3" < /dev/null;;
  install) cp "$3" "$here/installed.apk" && echo "Performing Streamed Install"; echo Success;;
  uninstall)
    if [ -e "$here/installed.apk" ]; then rm -rf "$here/installed.apk" "$here/app"; echo Success
    else echo "Failure [DELETE_FAILED_INTERNAL_ERROR]"; exit 1; fi;;
  *) echo "adb: unknown command $what" >&2; exit 1;;
esac
"""
CANNED = """\
#!/bin/sh
case $1 in
  about) echo '{"onnxruntime": "1.29.0", "cpu_count": 8, "providers": ["CPUExecutionProvider"]}';;
  check) echo '{"session_create_ns": 9, "first_inference_ns": 8, "golden_min_sqnr_db": 90.5}';;
  create) echo '{"session_create_ns": 9}';;
  memory) echo '{"baseline_bytes": 1, "loaded_bytes": 2, "peak_bytes": 3, "runs": 20}';;
  profile)
    while [ "$1" != --profile-prefix ]; do shift; done
    echo '[{"cat": "Node", "name": "n_kernel_time", "ph": "X", "pid": 1, "tid": 1, "ts": 9,
      "dur": 5, "args": {"op_name": "Conv", "provider": "CPUExecutionProvider"}}]' > "$2.json"
    echo '{"profile": "'"$2.json"'", "runs": 10}';;
  measure)
    echo '{"session_create_ns": 9, "first_inference_ns": 8, "golden_min_sqnr_db": 90.5,
      "warm_up_iterations": 99, "steady": true, "timed_from_ns": 0, "timed_to_ns": 2500,
      "inferences": 20, "latencies_ns": [100, 101, 100, 102, 100, 100, 99, 100, 100, 100, 100,
      100, 101, 100, 102, 100, 100, 99, 100, 100], "not_finite": []}';;
esac
"""
"""What the measuring program prints, for tests that are about what is around it."""


# As "am instrument -w -e folder FOLDER -e arguments WORDS NAME" does, with an app's folder.
_AM = """\
#!/bin/sh
app=$(dirname "$0")/../app
mkdir -p "$app/files" && app=$(cd "$app" && pwd)
folder=$5
words=$(echo "$8" | sed "s/,/ /g; s/%7B/{/g; s/%7D/}/g; s#{files}#$app/files#g")
set -- $words
cd "$folder" || exit 1
while [ $# -gt 0 ]; do [ "$1" = --out ] && out=$2; shift; done
"$(dirname "$0")/program" $words > "$out" 2> "$out.log"
echo "INSTRUMENTATION_RESULT: exit=$?"
echo "INSTRUMENTATION_CODE: -1"
"""
_RUN_AS = """\
#!/bin/sh
mkdir -p "$(dirname "$0")/../app" && cd "$(dirname "$0")/../app" && shift && exec "$@"
"""


@dataclass
class PhoneDouble:
    """A folder with a program called adb and what it says, and a device that uses it."""

    folder: Path
    device: Device

    def say(self, command: str, *, stdout: str = "", stderr: str = "", code: int = 1) -> None:
        """Have adb answer a command, known by some of its words, with these outputs alone."""
        said = self.folder / "says" / str(len(list((self.folder / "says").iterdir())))
        said.mkdir()
        texts = {"command": command, "stdout": stdout, "stderr": stderr, "code": str(code)}
        for name, text in texts.items():
            (said / name).write_text(text)

    def set(self, **properties: str) -> None:
        """Change Android's properties; ``__`` stands for a dot."""
        changed = {name.replace("__", "."): value for name, value in properties.items()}
        write_properties(self.folder / "phone", {**PROPERTIES, **changed})

    @property
    def commands(self) -> list[str]:
        """What adb was told, in order, without the serial."""
        return (self.folder / "log").read_text().splitlines()


def make_phone(
    folder: Path, *, target: str = "android", package: Path | None = None
) -> PhoneDouble:
    """Return a phone that is attached to this machine."""
    (folder / "phone").mkdir(parents=True)
    (folder / "says").mkdir()
    (folder / "serial").write_text(SERIAL)
    write_program(folder / "adb", _ADB)
    write_properties(folder / "phone", PROPERTIES)
    answers = (
        f'case "$1" in thermalservice) cat {folder}/thermal;; battery) cat {folder}/battery;; esac'
    )
    (folder / "thermal").write_text(THERMAL)
    (folder / "battery").write_text(BATTERY)
    write_program(folder / "phone" / "dumpsys", f"#!/bin/sh\n{answers}\n")
    write_program(folder / "phone" / "am", _AM)
    write_program(folder / "phone" / "run-as", _RUN_AS)
    write_program(folder / "phone" / "program", CANNED)
    write_program(folder / "phone" / "settings", "#!/bin/sh\necho 0\n")
    entry = AdbEntry(
        transport="adb",
        serial=SERIAL,
        target=target,
        adb=str(folder / "adb"),
        root=str(folder / "root"),
        package=str(package) if package else None,
    )
    return PhoneDouble(folder, Device("pixel", entry))


def write_properties(folder: Path, properties: Mapping[str, str]) -> None:
    """Write a ``getprop`` that prints properties."""
    lines = "".join(f"[{name}]: [{value}]\n" for name, value in properties.items())
    (folder / "properties").write_text(lines)
    write_program(folder / "getprop", f"#!/bin/sh\ncat {folder}/properties\n")


def write_package(path: Path, header: Path | None = None, library: Path | None = None) -> Path:
    """Write an onnxruntime package as Maven has it: headers, and a library for each ABI."""
    with zipfile.ZipFile(path, "w") as archive:
        headers = [header] if header else []
        if header:
            headers += [p for p in header.parent.glob("onnxruntime*_c_api.h") if p != header]
        for each in headers:
            archive.write(each, f"headers/{each.name}")
        if not header:
            archive.writestr("headers/onnxruntime_c_api.h", "")
        for abi in ("arm64-v8a", "x86_64"):
            name = f"jni/{abi}/libonnxruntime.so"
            archive.writestr(name, library.read_bytes() if library else b"")
    return path


def write_ndk(folder: Path, compiler: str | None = None, program: str | None = None) -> Path:
    """Write an NDK whose compiler is another one, or makes one and the same program of anything.

    That is measure_double.py, which runs models, unless ``program`` has its text.
    """
    tools = folder / "toolchains" / "llvm" / "prebuilt" / "linux-x86_64" / "bin"
    tools.mkdir(parents=True)
    double = Path(__file__).with_name("measure_double.py")
    paths = os.pathsep.join(path for path in sys.path if path)
    made = f'#!/bin/sh\nexport PYTHONPATH={paths}\nexec {sys.executable} {double} "$@"\n'
    write_program(folder / "made", program or made)
    own = f'while [ "$1" != -o ]; do shift; done\ncp {folder}/made "$2"\n'
    script = f'exec {compiler} "$@"\n' if compiler else own
    for triple in TRIPLES.values():
        write_program(tools / f"{triple}{API_LEVEL}-clang", f"#!/bin/sh\n{script}")
    return folder


def write_sdk(folder: Path) -> Path:
    """Write an SDK and a JDK whose programs leave the files that the real ones leave.

    Each also writes its arguments to a file ``called``.
    """
    out = 'while [ "$1" != {option} ]; do shift; done\n'
    programs = {
        "build-tools/35.0.0/aapt2": out.format(option="-o")
        + 'printf "PK\\005\\006%018d" 0 | tr 0 "\\000" > "$2"\n',
        "build-tools/35.0.0/d8": out.format(option="--output") + 'echo dex > "$2/classes.dex"\n',
        "build-tools/35.0.0/zipalign": 'cp "$3" "$4"\n',
        "build-tools/35.0.0/apksigner": out.format(option="--out") + 'cp "$3" "$2"\n',
        "jdk/bin/javac": out.format(option="-d")
        + 'mkdir -p "$2/edgepack" && touch "$2/edgepack/M.class"\n',
        "jdk/bin/keytool": out.format(option="-keystore") + 'echo key > "$2"\n',
    }
    (folder / "platforms" / "android-35").mkdir(parents=True)
    (folder / "platforms" / "android-35" / "android.jar").touch()
    for name, script in programs.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        log = f'echo "$(basename "$0") $*" >> {folder}/called\n'
        write_program(folder / name, f"#!/bin/sh\n{log}{script}")
    return folder


def write_program(path: Path, text: str) -> None:
    """Write a program."""
    path.write_text(text)
    path.chmod(0o755)


DETAILS = """\
Current device information:
▿ hardwareProperties:
    • marketingName: iPhone 15 Pro
    • productType: iPhone16,1
▿ deviceProperties:
    • developerModeStatus: enabled
    • osVersionNumber: 18.1
▿ connectionProperties:
    • pairingState: paired
    • tunnelState: disconnected
"""
UDID = "00008110-000A1B2C3D4E5F6A"
_XCRUN = """\
#!/bin/sh
here=$(dirname "$0")
for said in "$here"/says/*; do
  [ -e "$said" ] || continue
  case "$(basename "$0") $*" in
    *"$(cat "$said/command")"*) cat "$said/stdout"; cat "$said/stderr" >&2
      exit "$(cat "$said/code")";;
  esac
done
echo "$(basename "$0") $*" >> "$here/log"
case "$(basename "$0") $*" in
  "xcodebuild -version") echo "Xcode 16.1";;
  "xcodebuild build-for-testing "*)
    while [ "$1" != -derivedDataPath ]; do shift; done
    mkdir -p "$2/Build/Products/Release-iphoneos/Harness.app"
    touch "$2/Build/Products/Harness_iphoneos17.0-arm64.xctestrun";;
  "xcodebuild test-without-building "*) exec "$here/test";;
  "xcrun devicectl device copy to "*)
    mkdir -p "$here/container/${14}" && cp -R "${12}/." "$here/container/${14}";;
  "xcrun devicectl device copy from "*) cp "$here/container/${12}" "${14}";;
  "xcrun devicectl device info details "*) cat "$here/details";;
  "xcrun devicectl device install app "*) ;;
  "xcrun devicectl device uninstall app "*) rm -rf "$here/container";;
  *) echo "unknown: $0 $*" >&2; exit 64;;
esac
"""
_TEST = """\
#!{python}
import json, subprocess, sys
from pathlib import Path

here = Path(__file__).resolve().parent
folder = here / "container" / "Documents" / "edgepack"
request = json.loads((folder / "request.json").read_text())
*arguments, option, document = request["arguments"]
assert option == "--out"
done = subprocess.run([here / "program", *arguments], cwd=folder, capture_output=True)
(folder / document).write_bytes(done.stdout)
(folder / (document + ".log")).write_bytes(done.stderr)
moment = {{"thermal_state": 0, "low_power_mode": False, "battery_percent": 84.0,
          **json.loads((here / "moment").read_text())}}
facts = {{"system": "iOS", "version": "18.1", "model": "iPhone16,1", "boot": "1700000000",
         "cpu_flags": ["asimddp"], "simulator": False, "debugged": False,
         **json.loads((here / "facts").read_text())}}
answer = {{"exit": done.returncode, "before": moment, "after": moment, "facts": facts}}
(folder / request["answer"]).write_text(json.dumps(answer))
"""


def make_apple(folder: Path, *, program: str = CANNED) -> PhoneDouble:
    """Return an iPhone that is attached to this machine, which has Xcode's programs on PATH."""
    (folder / "says").mkdir(parents=True)
    (folder / "container" / "Documents").mkdir(parents=True)
    (folder / "facts").write_text("{}")
    (folder / "moment").write_text("{}")
    (folder / "log").touch()
    (folder / "details").write_text(DETAILS)
    for name in ("xcrun", "xcodebuild", "security"):
        write_program(folder / name, _XCRUN)
    write_program(folder / "test", _TEST.format(python=sys.executable))
    write_program(folder / "program", program)
    entry = AppleEntry(transport="apple", udid=UDID, team="ABCDE12345", target="ios")
    return PhoneDouble(folder, Device("iphone", entry))
