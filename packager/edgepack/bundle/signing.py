"""Signs bundles with SSH signatures over ``manifest.json``; ssh-keygen makes and checks them.

The manifest names every other file by its SHA-256, so its signature covers the whole bundle. The
format and the file of allowed signers are described in PROTOCOL.sshsig of OpenSSH and in
ssh-keygen(1), ALLOWED SIGNERS.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.processes import ProgramResult, run_on_terminal, run_program
from edgepack.bundle.archive import copy_file
from edgepack.bundle.manifest import MANIFEST, MANIFEST_SIGNATURE
from edgepack.bundle.reading import load_any, verify_any
from edgepack.errors import BundleError, ToolError, UsageError

NAMESPACE = "edgepack"
"""The signature's namespace, which separates signatures of bundles from those of files and git
commits."""

TIMEOUT_S = 60.0
ASKING_TIMEOUT_S = 300.0
"""Seconds that somebody has to type a passphrase or to touch a security key."""

_OPENSSH = "install OpenSSH 8.2 or newer (Debian: apt install openssh-client) and put it on PATH"
_GOOD = re.compile(r'^Good ".*" signature .*with (\S+) key (SHA256:\S+)$', re.MULTILINE)


@dataclass(frozen=True)
class Signature:
    """A signature that fits a bundle's manifest."""

    signer: str | None
    """The key's owner according to the allowed signers; None where they do not name the key."""
    key_type: str
    """As ssh-keygen prints it: ``ED25519``, ``RSA``, ``ECDSA``, ``ED25519-SK``."""
    fingerprint: str
    """The public key's fingerprint: ``SHA256:...``."""
    manifest_sha256: str
    """The sha256 of the signed manifest: the bundle's digest."""
    unknown: str = ""
    """Why there is no signer."""

    def __str__(self) -> str:
        key = f"{self.key_type} key {self.fingerprint}"
        return f"signed by {self.signer} with {key}" if self.signer else f"signed with {key}"


def find_allowed_signers() -> Path:
    """Return the path of the user's allowed signers, if it exists."""
    return Path.home() / ".ssh" / "allowed_signers"


def sign(bundle: Path, key: Path | None = None) -> Signature:
    """Sign a complete bundle with an SSH key; the new signature replaces an earlier one.

    ssh-keygen reads the key, or asks the agent, or asks for a passphrase on the terminal.

    Args:
        bundle: The bundle's folder.
        key: A private key, or the public key of one that the agent has. Default: the one key that
            the agent has or that lies in ``~/.ssh/id_ed25519``.

    Raises:
        BundleError: The bundle is not whole.
        UsageError: There is no key, or several and ``key`` does not say which.
        ToolError: ssh-keygen is missing or too old, or could not sign; or the bundle cannot be
            written to.
    """
    _require_folder(bundle)
    verify_any(bundle)
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        scratch = Path(folder)
        message = scratch / MANIFEST
        shutil.copyfile(bundle / MANIFEST, message)
        made = _sign(message, key, NAMESPACE)
        found = _check(message.read_bytes(), made, None, NAMESPACE)
        # Not by way of the bundle itself: whoever reads it meanwhile would find a file too many.
        copy_file(made, bundle / MANIFEST_SIGNATURE, by_way_of=bundle.resolve().parent)
    return found


def sign_message(message: bytes, namespace: str, key: Path | None = None) -> bytes:
    """Return the signature of other bytes than a manifest's, by a key as :func:`sign` finds it.

    Args:
        message: What is signed.
        namespace: What it is, so that no signature counts for anything else.
        key: As :func:`sign` has it.

    Raises:
        UsageError: There is no key, or several and ``key`` does not say which.
        ToolError: ssh-keygen is missing or too old, or could not sign.
    """
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        path = Path(folder) / "message"
        path.write_bytes(message)
        return _sign(path, key, namespace).read_bytes()


def find_fingerprint(key: Path) -> str:
    """Return a key's fingerprint as signatures have it; empty where ssh-keygen cannot tell.

    Args:
        key: A private key, or a public one.

    Raises:
        UsageError: There is no such key.
        ToolError: ssh-keygen is missing.
    """
    return _parse_fingerprint(_run(["-l", "-f", str(_find_given_key(key))]).text)


def check_message(
    message: bytes, signature: bytes, namespace: str, allowed_signers: Path | None = None
) -> Signature:
    """Return whose signature of some bytes it is.

    Args:
        message: What is signed.
        signature: The signature.
        namespace: As it was signed with.
        allowed_signers: Who may sign. Default: ``~/.ssh/allowed_signers``, if it exists.

    Raises:
        BundleError: It is no signature of these bytes in this namespace.
        UsageError: There is no such file of allowed signers.
        ToolError: ssh-keygen is missing or too old.
    """
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        path = Path(folder) / "message.sig"
        path.write_bytes(signature)
        return _check(message, path, _find_allowed(allowed_signers), namespace)


def read_signature(bundle: Path, allowed_signers: Path | None = None) -> Signature | None:
    """Return a bundle's signature after checking that it fits the manifest; None if unsigned.

    Args:
        bundle: The bundle's folder.
        allowed_signers: Who may sign. Default: ``~/.ssh/allowed_signers``, if it exists.

    Raises:
        BundleError: The manifest or the signature was altered.
        UsageError: There is no such file of allowed signers.
        ToolError: ssh-keygen is missing or too old.
    """
    load_any(bundle)
    signature = bundle / MANIFEST_SIGNATURE
    if not signature.exists():
        return None
    allowed = _find_allowed(allowed_signers)
    return _check((bundle / MANIFEST).read_bytes(), signature, allowed, NAMESPACE)


def require_signature(bundle: Path, allowed_signers: Path | None = None) -> Signature:
    """Return the signature of a bundle that one of the allowed signers has signed.

    The files that the manifest names are not read: :func:`edgepack.bundle.reading.verify` does
    that, and its result's ``digest`` is this result's ``manifest_sha256``.

    Args:
        bundle: The bundle's folder.
        allowed_signers: Who may sign. Default: ``~/.ssh/allowed_signers``.

    Raises:
        BundleError: It is not signed, or not by an allowed signer, or was changed after that.
        UsageError: There is no such file of allowed signers.
        ToolError: ssh-keygen is missing or too old.
    """
    allowed = allowed_signers or find_allowed_signers()
    _require_folder(bundle)
    _require_file(allowed)
    found = read_signature(bundle, allowed)
    if found is None:
        raise BundleError(
            f"{str(bundle)!r} is not signed",
            hint=f"sign it: edgepack sign {shlex.quote(str(bundle))}",
        )
    if found.signer is None:
        raise BundleError(
            f"{str(bundle)!r} is {found}, and {found.unknown}",
            hint=f"if you trust this key, add a line to {str(allowed)!r}: NAME"
            f' namespaces="{NAMESPACE}" KEY, where KEY is what the signer\'s .pub file holds',
        )
    return found


def _find_allowed(given: Path | None) -> Path | None:
    """Return the file of allowed signers, if there is one; one that is given has to be there."""
    if given is None:
        return find_allowed_signers() if find_allowed_signers().is_file() else None
    _require_file(given)
    return given


def _sign(message: Path, given: Path | None, namespace: str) -> Path:
    """Sign a file with a key that is given, or the only one, and return the signature's path."""
    key = _find_given_key(given) if given else _find_only_key(message.parent)
    argv = ["-Y", "sign", "-f", str(key), "-n", namespace, str(message)]
    result = _require_supported(
        run_on_terminal(
            [_find_ssh_keygen(), *argv], timeout_s=TIMEOUT_S, asking_timeout_s=ASKING_TIMEOUT_S
        )
    )
    if result.exit_code == 0:
        return message.with_name(f"{message.name}.sig")
    if b"passphrase" in result.stderr:
        hint = "add the key to the agent (ssh-add), or sign on a terminal, where it is asked for"
    else:
        hint = "name a private key with --key, or a .pub file whose key the agent has (ssh-add -L)"
    raise ToolError(f"ssh-keygen could not sign with {str(key)!r}{result.last_lines}", hint=hint)


def _check(message: bytes, signature: Path, allowed: Path | None, namespace: str) -> Signature:
    """Check a signature against its message, then look for its signer among the allowed ones."""
    argv = ["-Y", "check-novalidate", "-n", namespace, "-s", str(signature)]
    result = _run(argv, message)
    good = _GOOD.search(result.text)
    if result.exit_code or good is None:
        raise BundleError(
            f"{signature.name} is no signature of this {signature.stem}{result.last_lines}",
            hint="one of them was altered: get the bundle again, or if it is your own and whole"
            " (edgepack build), sign it again",
        )
    signer, unknown = None, "no file says whose key that is"
    if allowed:
        signer, unknown = _find_signer(message, signature, allowed, namespace)
    digest = hashlib.sha256(message).hexdigest()
    return Signature(signer, good[1], good[2], digest, unknown)


def _find_signer(
    message: bytes, signature: Path, allowed: Path, namespace: str
) -> tuple[str | None, str]:
    """Return the first principal that made this signature; without one, None and the reason."""
    files = ["-f", str(allowed), "-s", str(signature)]
    result = _run(["-Y", "find-principals", *files])
    # Before OpenSSH 8.5 the principals of one key are printed as the file has them, with commas.
    for principal in re.split(r"[,\n]", result.text):
        if not principal or principal.startswith("!"):
            continue
        result = _run(["-Y", "verify", *files, "-I", principal, "-n", namespace], message)
        if result.exit_code == 0:
            return principal, ""
    what = "bundles" if namespace == NAMESPACE else namespace
    return None, f"{str(allowed)!r} does not let it sign {what}{result.last_lines}"


def _run(argv: list[str], message: bytes = b"") -> ProgramResult:
    return _require_supported(
        run_program([_find_ssh_keygen(), *argv], timeout_s=TIMEOUT_S, input_bytes=message)
    )


def _find_ssh_keygen() -> str:
    if shutil.which("ssh-keygen") is None:
        raise ToolError("signatures are made and checked by ssh-keygen, not found", hint=_OPENSSH)
    return "ssh-keygen"


def _require_supported(result: ProgramResult) -> ProgramResult:
    """Return a result, unless ssh-keygen does not know an option and prints its usage."""
    if result.exit_code and b"usage: ssh-keygen" in result.stderr:
        raise ToolError(
            f"this ssh-keygen does not know {' '.join(result.argv[1:3])}", hint=_OPENSSH
        )
    return result


def _find_given_key(key: Path) -> Path:
    path = key.expanduser()
    if not path.is_file():
        raise UsageError(
            f"there is no key {str(path)!r}",
            hint="ls ~/.ssh/*.pub shows your keys; ssh-keygen -t ed25519 makes one",
            where="--key",
        )
    return path


def _find_only_key(scratch: Path) -> Path:
    """Return the user's only key: a file to name to ssh-keygen."""
    keys = _list_agent_keys(scratch)
    own = Path.home() / ".ssh" / "id_ed25519"
    if own.is_file():
        line = _run(["-l", "-f", str(own)]).text.strip()
        keys.setdefault(_parse_fingerprint(line), (line, own))
    if not keys:
        raise UsageError(
            f"there is no key to sign with: the agent has none, and {str(own)!r} is not there",
            hint="name one with --key, or make one: ssh-keygen -t ed25519",
            where="sign",
        )
    if len(keys) > 1:
        lines = "".join(f"\n  | {line}" for line, _ in keys.values())
        raise UsageError(
            f"you have {len(keys)} keys to sign with:{lines}",
            hint="say which: --key PATH of the private key, or of the .pub file of an agent's key",
            where="sign",
        )
    [(_, path)] = keys.values()
    return path


def _list_agent_keys(scratch: Path) -> dict[str, tuple[str, Path]]:
    """Return what the agent has, if there is one: by fingerprint, what to show and a .pub file."""
    shown, public = (
        run_program(["ssh-add", option], timeout_s=TIMEOUT_S).text.splitlines()
        for option in ("-l", "-L")
    )
    keys: dict[str, tuple[str, Path]] = {}
    # Without an agent or a key there is one line that says so, on stdout for -l and -L alike.
    for line, text in zip(shown, public, strict=False):
        if _parse_fingerprint(line) and "-cert-v01@" not in text.split(" ")[0]:
            path = scratch / f"{len(keys)}.pub"
            path.write_text(f"{text}\n", encoding="utf-8")
            keys[_parse_fingerprint(line)] = (line, path)
    return keys


def _parse_fingerprint(line: str) -> str:
    """Return the fingerprint in a line of ``ssh-keygen -l`` or ``ssh-add -l``, if it has one."""
    found = re.search(r" (SHA256:\S+) ", line)
    return found[1] if found else ""


def _require_folder(bundle: Path) -> None:
    if bundle.is_file():
        raise BundleError(
            f"{str(bundle)!r} is a file, not a bundle's folder",
            hint="name the bundle's folder, not its archive: tar -xf unpacks it",
        )


def _require_file(allowed: Path) -> None:
    if not allowed.is_file():
        raise UsageError(
            f"there are no allowed signers: {str(allowed)!r} is not a file",
            hint=f'write it, a line for each signer: NAME namespaces="{NAMESPACE}" KEY, where KEY'
            " is what the signer's .pub file holds",
            where="--allowed-signers",
        )
