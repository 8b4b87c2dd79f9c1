"""Makes the commands that build an onnxruntime with only the operators of ``.ort`` models."""

from __future__ import annotations

from typing import Literal

System = Literal["android", "ios", "linux", "macos"]
"""A device's operating system, as profiles name it."""

_REPOSITORY = "https://github.com/microsoft/onnxruntime"
_NO_TELEMETRY_SINCE = (1, 29)
_WITHOUT_EXCEPTIONS = ("--disable_exceptions", "--disable_rtti")

_FOR_SYSTEM: dict[System, tuple[str, ...]] = {
    "android": (
        "--android",
        '--android_sdk_path "$ANDROID_HOME"',
        '--android_ndk_path "$ANDROID_NDK_HOME"',
        "--android_abi arm64-v8a",
        "--android_api 24",
        "--build_shared_lib",
        "--build_java",
        *_WITHOUT_EXCEPTIONS,
    ),
    "ios": (
        "--ios",
        "--use_xcode",
        "--apple_sysroot iphoneos",
        "--osx_arch arm64",
        "--apple_deploy_target 15.1",
        "--build_apple_framework",
        *_WITHOUT_EXCEPTIONS,
    ),
    # The Python package needs exceptions and run-time types.
    "linux": ("--build_wheel",),
    "macos": ("--build_wheel",),
}


def make_build_command(
    system: System,
    version: str,
    *,
    config: str = "required_operators.config",
    extended: bool = False,
    ml_operators: bool = False,
) -> tuple[str, ...]:
    """Return the shell lines that build a reduced onnxruntime, in order.

    For Android they build an AAR for arm64-v8a and need ``ANDROID_HOME`` and ``ANDROID_NDK_HOME``;
    for iOS, on a Mac with Xcode, a framework for devices; for Linux and macOS a Python wheel for
    the machine they run on. The built runtime loads only ``.ort`` files, and only the listed
    operators. We have built none of them.

    Args:
        system: What the library is for.
        version: The version of onnxruntime that wrote the ``.ort`` file, or a newer one. A reader
            takes the format versions before its own, not those after it
            (https://github.com/microsoft/onnxruntime/issues/20670).
        config: The list of operators, as a path that the build finds, which runs in onnxruntime's
            folder; it goes into the line as it is.
        extended: Needed by ``runtime`` style files, and by providers that compile (CoreML, NNAPI).
        ml_operators: Keep what the domain ``ai.onnx.ml`` needs: set it if the list has that domain.

    Sources, all read 2026-11-21: ``docs/build/custom.md``, ``docs/build/android.md`` and
    ``docs/build/ios.md`` of onnxruntime's documentation; ``tools/ci_build/build_args.py`` of 2026
    and the build settings of the mobile packages (``default_mobile_aar_build_settings.json``,
    ``default_mobile_ios_framework_build_settings.json``) for the options' names;
    ``reduced_build_config_parser.py`` 1.31.1, which ignores the types without ``flatbuffers``;
    ``build_apple_framework.py`` for ``--apple_sysroot``. Android API level 24 and iOS 15.1 are what
    the official packages of 2026 need. ``--no_telemetry`` is in the Privacy.md of
    com.microsoft.onnxruntime:onnxruntime:1.29.0 and was not looked up for older releases. For these
    it is left out, so that the loaders still need ``ORT_DISABLE_TELEMETRY=1``.
    """
    minimal = "--minimal_build extended" if extended else "--minimal_build"
    options = [
        "--config MinSizeRel",
        "--parallel",
        "--skip_tests",
        minimal,
        f"--include_ops_by_config {config}",
        "--enable_reduced_operator_type_support",
    ]
    if not ml_operators:
        options.append("--disable_ml_ops")
    if _parse_release(version) >= _NO_TELEMETRY_SINCE:
        options.append("--no_telemetry")
    return (
        f"git clone --depth 1 --recurse-submodules --branch v{version} {_REPOSITORY}",
        "cd onnxruntime",
        "python3 -m pip install flatbuffers",
        " ".join(["./build.sh", *options, *_FOR_SYSTEM[system]]),
    )


def _parse_release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
