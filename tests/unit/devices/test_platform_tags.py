from __future__ import annotations

import pytest
from edgepack.devices.provisioning.wheel_files import fits
from edgepack.devices.provisioning.wheels import list_platform_tags
from edgepack.errors import DeviceError


def test_newest_wheels_for_the_devices_glibc_come_first() -> None:
    tags = list_platform_tags("aarch64", "glibc 2.28")
    assert tags[0] == "manylinux_2_28_aarch64"
    assert tags[-3:] == ["manylinux_2_17_aarch64", "manylinux2014_aarch64", "linux_aarch64"]
    assert "manylinux_2_29_aarch64" not in tags


def test_x86_is_spelt_as_wheels_spell_it() -> None:
    assert list_platform_tags("x86-64", "glibc 2.36")[0] == "manylinux_2_36_x86_64"


def test_mac_takes_wheels_for_its_system_and_older() -> None:
    assert list_platform_tags("aarch64", "macOS 15.1") == ["macosx_15_0_arm64"]


@pytest.mark.parametrize("libc", ["", "musl", "glibc"])
def test_other_c_libraries_have_no_wheels(libc: str) -> None:
    with pytest.raises(DeviceError, match="no wheels for the device's C library"):
        list_platform_tags("aarch64", libc)


@pytest.mark.parametrize(
    ("arch", "libc", "taken", "refused"),
    [
        (
            "aarch64",
            "macOS 15.1",
            ["macosx_14_0_arm64", "macosx_13_0_universal2"],
            "macosx_16_0_arm64",
        ),
        (
            "x86-64",
            "glibc 2.31",
            ["manylinux1_x86_64", "manylinux2010_x86_64", "manylinux_2_12_x86_64", "linux_x86_64"],
            "manylinux_2_34_x86_64",
        ),
    ],
)
def test_wheels_that_pip_takes_on_a_device_fit(
    arch: str, libc: str, taken: list[str], refused: str
) -> None:
    platforms = list_platform_tags(arch, libc)
    for tag in taken:
        assert fits(f"x-1.0-cp311-cp311-{tag}.whl", "3.11.2", platforms)
    assert not fits(f"x-1.0-cp311-cp311-{refused}.whl", "3.11.2", platforms)
    assert not fits(f"x-1.0-cp312-cp312-{taken[0]}.whl", "3.11.2", platforms)
