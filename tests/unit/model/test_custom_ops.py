"""What is said about a library of custom operators without loading it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from edgepack.model.custom_ops import (
    REGISTER,
    explain_not_loading,
    explain_unusable,
    find_registered,
    registered,
)

X86_64, AARCH64, ARM = 62, 183, 40
FAILED = "Failed to load library /a.so with error"
NAME = b"\0RegisterCustomOps\0"


def elf(*, machine=X86_64, bits=2, order=1, kind=3, names=NAME) -> bytes:
    """An ELF header as elf(5) describes it, and names behind it."""
    identity = b"\x7fELF" + bytes([bits, order, 1]) + bytes(9)
    return identity + struct.pack("<HH", kind, machine) + bytes(44) + names


def test_library_for_the_architecture_may_be_one():
    assert explain_unusable(elf(), "x86-64") == ""
    assert explain_unusable(elf(machine=AARCH64), "aarch64") == ""


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no ELF file"),
        (b"\x7fELF", "no ELF file"),
        (b"#!/bin/sh\nexit 0\n" + bytes(80), "no ELF file"),
        (elf(machine=AARCH64), "built for aarch64, not for x86-64"),
        (elf(machine=ARM), "ELF machine 40"),
        (elf(bits=1), "not for x86-64"),
        (elf(order=2), "not for x86-64"),
        (elf(kind=2), "no shared library (ELF type 2)"),
        (elf(names=b"\0RegisterCustomOpsToo\0"), "does not export the function"),
    ],
)
def test_other_files_are_none_with_the_reason(data, why):
    assert why in explain_unusable(data, "x86-64")


@pytest.mark.parametrize(
    ("said", "why", "hint"),
    [
        (
            f"Failed to get symbol {REGISTER} with error: /a.so: undefined symbol: {REGISTER}",
            "Failed to get symbol RegisterCustomOps",
            "with C linkage",
        ),
        (
            f"{FAILED}: /lib/libc.so.6: version `GLIBC_2.38' not found (required by /a.so)",
            "/lib/libc.so.6: version `GLIBC_2.38' not found",
            "GLIBC_2.38 is not here",
        ),
        (
            f"{FAILED}: libb.so: cannot open shared object file: No such file or directory",
            "libb.so: cannot open",
            "install what it needs",
        ),
        (
            f"{FAILED}: /a.so: undefined symbol: twist",
            "/a.so: undefined symbol: twist",
            "link the library that has the symbol",
        ),
        ("something else", "something else", "against headers of the onnxruntime"),
    ],
)
def test_what_onnxruntime_says_becomes_a_reason_and_a_remedy(said, why, hint):
    found, remedy = explain_not_loading(said)
    assert found.startswith(why)
    assert hint in remedy


def test_what_is_registered_ends_with_the_block():
    with registered(Path("a.so")):
        with registered(None):
            assert find_registered() is None
        assert find_registered() == Path("a.so")
    assert find_registered() is None
