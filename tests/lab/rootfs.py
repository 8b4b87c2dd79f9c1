"""The boards' root file systems: releases of Debian with Python, kept as tarballs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from tests.lab.host import CannotRunError, LabError, run
from tests.lab.kinds import Kind

USER = "bench"
"""The account that edgepack logs in to; it may write to its home only."""
BUILD_S = 1800.0

RECIPE = [
    "--mode=root",
    "--variant=essential",
    # The board has no internet. Its apt knows packages from lists that an apt-get update has
    # left, with what it made of them.
    "--skip=cleanup/apt",
    '--customize-hook=! test -x "$1/usr/bin/apt-cache" || chroot "$1" apt-cache gencaches',
    "--dpkgopt=force-unsafe-io",
    '--aptopt=APT::Install-Recommends "false"',
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    # The host's sshd serves the board and finds its accounts in the board's files.
    '--customize-hook=chroot "$1" useradd --system --shell /usr/sbin/nologin sshd',
    f'--customize-hook=chroot "$1" useradd --create-home --password "*" --shell /bin/sh {USER}',
]

# Arguments: a folder for the scratch file system, then mmdebstrap's. In a mount namespace of its
# own: whatever ends the build, no mount of it stays. In memory: dpkg syncs every file.
_BUILD = 'mount -t tmpfs tmpfs "$1" && export TMPDIR="$1" && shift && exec mmdebstrap "$@"'

# Of the host's settings for apt, those that decide whether it reaches and accepts a mirror.
_KEPT_SETTINGS = ("Acquire::http", "Acquire::https", "Acquire::Check-", "Acquire::Retries")


def find_rootfs(
    cache: Path,
    work: Path,
    say: Callable[[str], None],
    kind: Kind,
    *,
    fresh: bool = False,
) -> Path:
    """Return the tarball of a root file system, building it if the cache lacks it or ``fresh``.

    Raises:
        CannotRunError: The host's apt knows no mirror of Debian.
        LabError: mmdebstrap failed.
    """
    argv = [*RECIPE, f"--arch={kind.debian_arch}", f"--include={kind.packages}"]
    recipe = hashlib.sha256("\n".join([kind.release, *argv]).encode()).hexdigest()[:12]
    system = f"{kind.release}-{kind.debian_arch}"
    tarball = cache / f"{system}-{recipe}.tar"
    if tarball.exists() and not fresh:
        size_mib = tarball.stat().st_size >> 20
        say(f"root file system of {system} from the cache ({size_mib} MiB)")
        return tarball
    sources = mirrors(kind.release)
    say(f"building the root file system from {sources[0]} (two minutes and more)")
    cache.mkdir(parents=True, exist_ok=True)
    partial = work / f"{system}.tar"
    _build([*argv, kind.release, str(partial), *sources], work / f"mmdebstrap-{system}")
    for old in cache.glob(f"{system}-*.tar"):
        old.unlink()
    kept = tarball.with_suffix(".partial")
    run("cp", "--", str(partial), str(kept), timeout_s=300)
    kept.replace(tarball)
    partial.unlink()
    return tarball


def _build(words: list[str], scratch: Path) -> None:
    scratch.mkdir()
    settings = [f"--aptopt={line}" for line in _apt_settings()]
    isolated = ["setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--pid", "--fork"]
    isolated += ["--kill-child", "sh", "-c", _BUILD, "sh", str(scratch)]
    argv = [*isolated, "--quiet", *settings, *words]
    run(*argv, timeout_s=BUILD_S)


def mirrors(release: str) -> list[str]:
    """Return the host's own apt sources of a release, a line of sources.list each.

    apt itself is asked, which reads every format of its files. For another release than the host's
    it is the host's mirror.

    Raises:
        CannotRunError: There are none.
    """
    wanted = "$(ORIGIN) $(COMPONENT) $(REPO_URI) $(CODENAME)"
    text = run("apt-get", "indextargets", "--format", wanted, "Created-By: Packages")
    found: list[str] = []
    own: list[str] = []
    for words in map(str.split, text.splitlines()):
        if len(words) != 4 or words[:2] != ["Debian", "main"]:
            continue
        uri, suite = words[2:]
        found.append(f"deb {uri} {suite} main")
        if "-" not in suite:
            own.append(f"deb {uri} {release} main")
    suites = (release, f"{release}-updates", f"{release}-security")
    lines = [line for line in dict.fromkeys(found) if line.split()[2] in suites]
    if not own:
        raise CannotRunError("this machine's apt has no source of Debian (after apt-get update)")
    return lines or own[:1]


def _apt_settings() -> list[str]:
    lines = run("apt-config", "dump", "--no-empty").splitlines()
    return [line.removesuffix(";") for line in lines if line.startswith(_KEPT_SETTINGS)]


def unpack(tarball: Path, root: Path) -> None:
    """Unpack the root file system, with owners and device nodes, into a new folder.

    Raises:
        LabError: It cannot be unpacked.
    """
    root.mkdir(mode=0o755)
    run("tar", "--extract", "--preserve-permissions", "--numeric-owner",
        f"--file={tarball}", f"--directory={root}", timeout_s=300)  # fmt: skip
    root.chmod(0o755)  # the tarball's first member sets it too
    if not (root / "etc" / "passwd").is_file():
        raise LabError(f"{tarball} is no root file system: remove it and start again")
