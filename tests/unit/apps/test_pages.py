"""Whether an app's native libraries load with pages of 16 KB; the ELF files are the simplest."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import onnxruntime
import pytest
from edgepack.apps.aar.pages import PageAnswer, check_pages

NAME, VERSION = "com.microsoft.onnxruntime:onnxruntime-android", "1.29.0"
ARM, X86, HEXAGON = 183, 62, 164


def elf(*segments: tuple[int, int, int], machine: int = ARM, count: int | None = None) -> bytes:
    """A 64-bit ELF file with LOAD segments: offset, address, alignment."""
    number = len(segments) if count is None else count
    head = struct.pack("<4sBBB9x", b"\x7fELF", 2, 1, 1)
    head += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, number, 0, 0, 0)
    stack = struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16)
    entries = [struct.pack("<IIQQQQQQ", 1, 5, at, to, to, 9, 9, by) for at, to, by in segments]
    return head + b"".join(entries) + (stack if count is not None else b"")


def write_aar(folder: Path, libraries: dict[str, bytes]) -> Path:
    path = folder / f"onnxruntime-android-{VERSION}.aar"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("classes.jar", b"")
        for place, data in libraries.items():
            archive.writestr(place, data)
    return path


def check(folder: Path) -> list[PageAnswer]:
    return check_pages([(NAME, VERSION)], folder)


@pytest.mark.parametrize(
    ("data", "aligned", "about"),
    [
        (elf((0, 0, 0x4000), (0x4000, 0x8000, 0x4000)), True, ""),
        (elf((0, 0, 0x10000)), True, ""),
        (elf((0, 0, 0x4000), (0x8000, 0x8000, 0x1000)), False, "aligned to 4096 bytes"),
        (elf((0x1000, 0x6000, 0x4000)), False, "lies otherwise in a page"),
        (elf((0, 0, 0x1000), machine=HEXAGON), None, "another processor than its ABI's (machine"),
        (elf((0, 0, 0x4000))[:80], None, "its ELF header is damaged"),
        (elf(count=1), None, "it has no LOAD segment"),
        (b"\x7fELF", None, "it is no ELF file"),
        (b"text" * 40, None, "it is no ELF file"),
    ],
)
def test_library_when_looked_into_answers_whether_its_segments_fit(tmp_path, data, aligned, about):
    write_aar(tmp_path, {"jni/arm64-v8a/lib.so": data})
    [found] = check(tmp_path)
    assert (found.aligned, found.library) == (aligned, "jni/arm64-v8a/lib.so")
    assert about in found.about
    assert str(found).startswith({True: "yes: ", False: "NO: ", None: "not checked: "}[aligned])


def test_libraries_when_of_32_bits_need_no_such_pages(tmp_path):
    small = elf((0, 0, 0x1000))
    places = [
        "jni/armeabi-v7a/lib.so",
        "jni/x86/lib.so",
        "jni/arm64-v8a/lib.txt",
        "jni/x86_64/a.so",
    ]
    write_aar(tmp_path, dict.fromkeys(places, small))
    assert [found.library for found in check(tmp_path)] == ["jni/x86_64/a.so"]


def test_library_when_it_is_onnxruntimes_own_for_linux_is_not_for_such_pages(tmp_path):
    [library] = (Path(onnxruntime.__file__).parent / "capi").glob("onnxruntime_pybind11_state*.so")
    data = library.read_bytes()
    if struct.unpack_from("<H", data, 18)[0] != X86:
        pytest.skip("the wheel is for another processor")
    write_aar(tmp_path, {"jni/x86_64/libonnxruntime.so": data})
    [found] = check(tmp_path)
    assert (found.aligned, found.about) == (False, "a LOAD segment is aligned to 4096 bytes")


def test_package_when_it_is_in_mavens_repository_is_found_there(tmp_path, own_home):
    folder = own_home / ".m2/repository/com/microsoft/onnxruntime/onnxruntime-android" / VERSION
    write_aar(folder, {"jni/x86_64/lib.so": elf((0, 0, 0x4000), machine=X86)})
    assert [str(found) for found in check(tmp_path)] == [f"yes: {NAME}:{VERSION} jni/x86_64/lib.so"]


def test_package_when_it_is_not_here_says_so_with_the_command(tmp_path, own_home):
    [found] = check(tmp_path)
    assert (found.aligned, found.library) == (None, "")
    assert f"mvn dependency:get -Dartifact={NAME}:{VERSION}:aar" in f"{found}"


def test_package_when_it_is_damaged_is_not_checked_and_named(tmp_path):
    path = tmp_path / f"onnxruntime-android-{VERSION}.aar"
    path.write_bytes(b"half of it")
    [found] = check(tmp_path)
    assert found.aligned is None
    assert f"{path} cannot be read" in found.about
