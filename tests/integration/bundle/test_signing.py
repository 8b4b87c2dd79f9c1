"""Signatures of bundles, made and checked by the real ssh-keygen with keys of the tests' own."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from edgepack.bundle.manifest import MANIFEST, MANIFEST_DIGEST, MANIFEST_SIGNATURE, UNLISTED
from edgepack.bundle.reading import load_bundle, verify
from edgepack.bundle.signing import read_signature, require_signature, sign
from edgepack.cli.main import run
from edgepack.deploy.audit import read_audit_log
from edgepack.errors import BundleError, ToolError, UnreachableError, UsageError

from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.servers.ssh_agents import running_agent

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen")

PASSPHRASE = "correct horse battery staple"
EDGEPACK = [sys.executable, "-m", "edgepack"]
ON_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(1, termios.TIOCSCTTY, 0);"
    " os.execv(sys.argv[1], sys.argv[1:])"
)


@pytest.fixture(scope="module")
def unsigned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bundle(tmp_path_factory.mktemp("tiny") / "bundle")


@pytest.fixture
def bundle(unsigned: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(unsigned, tmp_path / "bundle"))


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path / "alice")


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with running_agent() as socket:
        monkeypatch.setenv("SSH_AUTH_SOCK", socket)
        yield


def make_key(path: Path, passphrase: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    keygen("-q", "-t", "ed25519", "-N", passphrase, "-C", path.name, "-f", str(path))
    return path


def keygen(*arguments: str, stdin: bytes = b"") -> str:
    done = subprocess.run(["ssh-keygen", *arguments], input=stdin, capture_output=True, check=True)
    return done.stdout.decode()


def fingerprint(key: Path) -> str:
    return keygen("-l", "-f", str(key)).split()[1]


def allow(path: Path, key: Path, name: str = "alice@example.com", options: str = "") -> Path:
    """Add a line to a file of allowed signers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    public = key.with_suffix(".pub").read_text()
    with path.open("a") as file:
        file.write(f"{name} {options} {public}" if options else f"{name} {public}")
    return path


def test_bundle_when_signed_names_the_signer_and_stays_whole(bundle, key, tmp_path):
    made = sign(bundle, key)
    found = require_signature(bundle, allow(tmp_path / "allowed", key))
    assert found.signer == "alice@example.com"
    assert found.fingerprint == made.fingerprint == fingerprint(key)
    assert found.key_type == "ED25519"
    assert found.manifest_sha256 == load_bundle(bundle).digest
    assert verify(bundle).digest == found.manifest_sha256
    assert {path.name for path in bundle.iterdir() if path.is_file()} >= set(UNLISTED)
    assert not [file for file in load_bundle(bundle).manifest.files if file.path in UNLISTED]


def test_signature_when_checked_by_hand_is_good(bundle, key, tmp_path):
    sign(bundle, key)
    allowed = allow(tmp_path / "allowed", key)
    said = keygen(
        *("-Y", "verify", "-f", str(allowed), "-I", "alice@example.com", "-n", "edgepack"),
        *("-s", str(bundle / MANIFEST_SIGNATURE)),
        stdin=(bundle / MANIFEST).read_bytes(),
    )
    assert fingerprint(key) in said


def test_manifest_when_altered_after_signing_is_refused(bundle, key, tmp_path):
    sign(bundle, key)
    allowed = allow(tmp_path / "allowed", key)
    change_manifest(bundle, lambda manifest: manifest.update(version="1.0.1"))
    for check in (require_signature, read_signature):
        with pytest.raises(BundleError, match="is no signature of this"):
            check(bundle, allowed)


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "other"])
def test_signature_when_altered_is_refused(bundle, key, tmp_path, damage):
    sign(bundle, key)
    path = bundle / MANIFEST_SIGNATURE
    text = path.read_text()
    head, body, foot = text.partition("\n-----END")
    last = {"A": "B"}.get(head[-6], "A")
    path.write_text(
        {
            "flipped": head[:-6] + last + head[-5:] + body + foot,
            "cut": text[: len(text) // 2],
            "empty": "",
            "other": "not a signature\n",
        }[damage]
    )
    for allowed in (None, allow(tmp_path / "allowed", key)):
        with pytest.raises(BundleError, match="is no signature of this"):
            read_signature(bundle, allowed)


def test_signature_when_made_for_something_else_is_refused(bundle, key, tmp_path):
    keygen("-Y", "sign", "-f", str(key), "-n", "file", str(bundle / MANIFEST))
    with pytest.raises(BundleError, match="namespace"):
        require_signature(bundle, allow(tmp_path / "allowed", key))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ('valid-before="20200101"', "expired"),
        ('valid-after="20990101"', "not yet valid"),
        ('namespaces="git"', "not permitted"),
        (None, "No principal matched"),
    ],
    ids=["expired", "early", "for git", "somebody else"],
)
def test_signer_when_not_allowed_is_refused_and_the_reason_told(
    bundle, key, tmp_path, options, reason
):
    sign(bundle, key)
    named = key if options else make_key(tmp_path / "bob")
    allowed = allow(tmp_path / "allowed", named, options=options or "")
    with pytest.raises(BundleError, match=reason) as refused:
        require_signature(bundle, allowed)
    assert fingerprint(key) in refused.value.problem
    found = read_signature(bundle, allowed)
    assert found is not None
    assert found.signer is None
    assert reason in found.unknown


def test_signer_when_a_line_has_several_names_is_one_of_them(bundle, key, tmp_path):
    sign(bundle, key)
    names = "!bob@example.com,alice@example.com,al@example.com"
    allowed = allow(tmp_path / "allowed", key, names, 'namespaces="git,edgepack"')
    assert require_signature(bundle, allowed).signer == "alice@example.com"


def test_allowed_signers_when_not_named_are_those_of_the_home(bundle, key, own_home):
    sign(bundle, key)
    with pytest.raises(UsageError, match=r"there are no allowed signers: .*/\.ssh/allowed_signers"):
        require_signature(bundle)
    unknown = read_signature(bundle)
    assert unknown is not None
    assert unknown.signer is None
    allow(own_home / ".ssh" / "allowed_signers", key)
    assert require_signature(bundle).signer == "alice@example.com"
    known = read_signature(bundle)
    assert known is not None
    assert known.signer == "alice@example.com"


def test_bundle_when_not_signed_is_refused_where_it_has_to_be(bundle, key, tmp_path):
    assert read_signature(bundle) is None
    with pytest.raises(BundleError, match="is not signed") as refused:
        require_signature(bundle, allow(tmp_path / "allowed", key))
    assert "edgepack sign" in refused.value.hint


def test_bundle_when_altered_or_packed_is_not_signed(bundle, key, tmp_path):
    with pytest.raises(BundleError, match="is a file, not a bundle's folder"):
        sign(bundle / MANIFEST, key)
    (bundle / "models" / "cpu-fp32.onnx").write_bytes(b"other")
    with pytest.raises(BundleError, match="does not have the hash"):
        sign(bundle, key)
    assert not (bundle / MANIFEST_SIGNATURE).exists()


def test_signature_when_it_is_a_link_is_found_by_verify(bundle, key, tmp_path):
    sign(bundle, key)
    (bundle / MANIFEST_SIGNATURE).rename(tmp_path / "elsewhere")
    (bundle / MANIFEST_SIGNATURE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleError, match=MANIFEST_SIGNATURE):
        verify(bundle)


def test_bundle_when_signed_again_has_the_newer_signature(bundle, key, tmp_path):
    sign(bundle, key)
    other = make_key(tmp_path / "bob")
    sign(bundle, other)
    found = read_signature(bundle)
    assert found is not None
    assert found.fingerprint == fingerprint(other)
    assert not [path for path in bundle.iterdir() if path.name.startswith(".")]


def test_key_when_not_named_is_the_only_one(bundle, own_home, agent):
    with pytest.raises(UsageError, match="there is no key to sign with"):
        sign(bundle)
    own = make_key(own_home / ".ssh" / "id_ed25519")
    assert sign(bundle).fingerprint == fingerprint(own)
    subprocess.run(["ssh-add", "-q", str(own)], check=True)
    assert sign(bundle).fingerprint == fingerprint(own)
    own.unlink()
    assert sign(bundle).fingerprint == fingerprint(own.with_suffix(".pub"))
    assert sign(bundle, own.with_suffix(".pub")).fingerprint == fingerprint(own.with_suffix(".pub"))


def test_key_when_there_are_several_has_to_be_named(bundle, key, own_home, agent):
    subprocess.run(["ssh-add", "-q", str(key)], check=True)
    own = make_key(own_home / ".ssh" / "id_ed25519")
    with pytest.raises(UsageError, match="you have 2 keys") as refused:
        sign(bundle)
    assert fingerprint(key) in refused.value.problem
    assert fingerprint(own) in refused.value.problem
    assert "--key" in refused.value.hint
    assert sign(bundle, key).fingerprint == fingerprint(key)


def test_key_when_it_is_none_is_an_error_with_what_ssh_keygen_says(bundle, tmp_path):
    with pytest.raises(UsageError, match="there is no key"):
        sign(bundle, tmp_path / "missing")
    (tmp_path / "junk").write_text("junk\n")
    with pytest.raises(ToolError, match="could not sign"):
        sign(bundle, tmp_path / "junk")
    public = make_key(tmp_path / "bob").with_suffix(".pub")
    (tmp_path / "bob").unlink()
    with pytest.raises(ToolError, match="No private key found") as refused:
        sign(bundle, public)
    assert "ssh-add -L" in refused.value.hint


def test_passphrase_when_there_is_no_terminal_fails_at_once(bundle, tmp_path):
    locked = make_key(tmp_path / "locked", PASSPHRASE)
    done = subprocess.run(
        [*EDGEPACK, "sign", str(bundle), "--key", str(locked)],
        stdin=subprocess.PIPE,
        capture_output=True,
        start_new_session=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == ToolError.exit_code
    assert b"passphrase" in done.stderr
    assert b"hint: add the key to the agent (ssh-add), or sign on a terminal" in done.stderr
    assert not (bundle / MANIFEST_SIGNATURE).exists()


@contextmanager
def on_terminal(*argv: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run a program on a terminal of its own; give our end of it, and the program."""
    ours, theirs = os.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", ON_TERMINAL, *argv],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    try:
        yield ours, child
    finally:
        child.kill()
        child.wait()
        os.close(theirs)
        os.close(ours)


def test_passphrase_when_there_is_a_terminal_is_asked_for_and_not_shown(bundle, tmp_path):
    locked = make_key(tmp_path / "locked", PASSPHRASE)
    with on_terminal(*EDGEPACK, "sign", str(bundle), "--key", str(locked)) as (terminal, child):
        said = read_until(terminal, b"passphrase")
        os.write(terminal, f"{PASSPHRASE}\n".encode())
        said += read_until(terminal, fingerprint(locked).encode())
        assert child.wait(timeout=60) == 0, said
    assert PASSPHRASE.encode() not in said
    found = read_signature(bundle)
    assert found is not None
    assert found.fingerprint == fingerprint(locked)


def test_passphrase_when_not_given_ends_by_ctrl_c_and_the_terminal_echoes_again(bundle, tmp_path):
    locked = make_key(tmp_path / "locked", PASSPHRASE)
    with on_terminal(*EDGEPACK, "sign", str(bundle), "--key", str(locked)) as (terminal, child):
        read_until(terminal, b"passphrase")
        assert not termios.tcgetattr(terminal)[3] & termios.ECHO
        os.write(terminal, b"\x03")
        assert child.wait(timeout=60) == 130
        assert termios.tcgetattr(terminal)[3] & termios.ECHO
    assert sorted(path.name for path in bundle.iterdir() if "manifest" in path.name) == [
        MANIFEST,
        MANIFEST_DIGEST,
    ]


def test_program_when_it_asks_for_too_long_is_ended(tmp_path):
    script = (
        "from edgepack.base.processes import run_on_terminal;"
        "run_on_terminal(['sh', '-c', 'read answer'], timeout_s=60, asking_timeout_s=0.5)"
    )
    with on_terminal(sys.executable, "-c", script) as (terminal, child):
        read_until(terminal, b"took longer than 0.5 s")
        child.wait(timeout=60)


def test_program_when_it_is_killed_leaves_a_terminal_that_echoes(tmp_path):
    deaf = "trap '' INT TERM; stty -echo; exec sleep 60"
    script = (
        "from edgepack.base.processes import run_on_terminal;"
        f"run_on_terminal(['sh', '-c', {deaf!r}], timeout_s=60, asking_timeout_s=1)"
    )
    with on_terminal(sys.executable, "-c", script) as (terminal, child):
        read_until(terminal, b"took longer than 1 s")
        child.wait(timeout=60)
        assert termios.tcgetattr(terminal)[3] & termios.ECHO


def read_until(terminal: int, word: bytes) -> bytes:
    """Read what is printed on a terminal until a word appears."""
    said = b""
    while word not in said:
        assert select.select([terminal], [], [], 60)[0], said
        said += os.read(terminal, 1024)
    return said


def test_ssh_keygen_when_absent_or_old_says_what_to_install(bundle, key, tmp_path, monkeypatch):
    sign(bundle, key)
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    for problem in ("ssh-keygen, not found", "this ssh-keygen does not know -Y"):
        for call in (lambda: sign(bundle, key), lambda: read_signature(bundle)):
            with pytest.raises(ToolError, match=problem) as refused:
                call()
            assert "install OpenSSH 8.2 or newer" in refused.value.hint
        old = programs / "ssh-keygen"
        old.write_text(
            "#!/bin/sh\necho 'unknown option -- Y\nusage: ssh-keygen [-q]' >&2\nexit 1\n"
        )
        old.chmod(0o755)


def test_commands_when_used_one_after_another_sign_and_tell_the_signer(
    bundle, key, tmp_path, capsys
):
    assert run(["verify", str(bundle)]) == 0
    assert "\nnot signed\n" in capsys.readouterr().out
    assert run(["sign", str(bundle), "--key", str(key), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fingerprint"] == fingerprint(key)
    assert run(["verify", str(bundle)]) == 0
    assert f"signed with ED25519 key {fingerprint(key)}" in capsys.readouterr().out
    allowed = str(allow(tmp_path / "allowed", key))
    assert run(["verify", str(bundle), "--allowed-signers", allowed]) == 0
    assert "signed by alice@example.com with ED25519 key SHA256:" in capsys.readouterr().out
    assert run(["verify", str(bundle), "--allowed-signers", allowed, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["signature"]["signer"] == "alice@example.com"


@pytest.fixture
def push(bundle: Path, tmp_path: Path, own_home: Path) -> list[str]:
    """The command that pushes the bundle to this machine."""
    config = own_home / ".config" / "edgepack"
    config.mkdir(parents=True)
    entry = f"{{transport: local, target: linux-x86-64, root: {tmp_path / 'root'}}}"
    (config / "devices.yaml").write_text(f"schema_version: 1\ndevices:\n  here: {entry}\n")
    return ["push", str(bundle), "--device", "here", "--no-self-test"]


def test_push_when_a_signature_is_required_sends_no_other_bundle(
    bundle, key, push, tmp_path, capsys
):
    root = tmp_path / "root"
    allowed = str(allow(tmp_path / "allowed", key))
    assert run([*push, "--require-signature", "--allowed-signers", allowed]) == 7
    assert "is not signed" in capsys.readouterr().err
    sign(bundle, make_key(tmp_path / "bob"))
    assert run([*push, "--allowed-signers", allowed]) == 7
    assert "No principal matched" in capsys.readouterr().err
    assert not root.exists()
    sign(bundle, key)
    assert run([*push, "--require-signature", "--allowed-signers", allowed]) == 0
    current = root / "tiny" / "current"
    assert require_signature(current, Path(allowed)).signer == "alice@example.com"


def test_signature_when_it_was_pushed_is_verified_on_the_device_by_ssh_keygen_alone(
    bundle, key, push, tmp_path
):
    sign(bundle, key)
    assert run(push) == 0
    page = (Path(__file__).resolve().parents[3] / "docs/trust.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^(ssh-keygen -Y verify .*)$", page, re.MULTILINE)
    release = tmp_path / "root" / "tiny" / "current"
    allowed = allow(tmp_path / "allowed", key)
    argv = line.replace("-f allowed_signers", f"-f {allowed}").removesuffix("< manifest.json")
    verify = [*argv.split()]
    manifest = (release / MANIFEST).read_bytes()
    good = subprocess.run(verify, cwd=release, input=manifest, capture_output=True, check=False)
    assert good.returncode == 0, good.stderr
    assert good.stdout.startswith(b'Good "edgepack" signature for alice@example.com')
    altered = manifest.replace(b'"version": "1.0.0"', b'"version": "1.0.1"')
    assert altered != manifest
    bad = subprocess.run(verify, cwd=release, input=altered, capture_output=True, check=False)
    assert bad.returncode != 0


def test_signer_when_allowed_signers_are_given_is_who_these_say_in_the_audit_log(
    bundle, key, push, tmp_path
):
    sign(bundle, key)
    allowed = str(allow(tmp_path / "allowed", key))
    assert run([*push, "--allowed-signers", allowed]) == 0
    assert {one.signer for one in read_audit_log().records} == {
        f"alice@example.com ({fingerprint(key)})"
    }


@pytest.mark.slow(reason="pushes to several devices several times")
@pytest.mark.parametrize("change", ["signature gone", "signed by another", "no longer allowed"])
def test_rollout_when_it_required_a_signature_requires_it_when_resumed(
    bundle, push, tmp_path, capsys, monkeypatch, change
):
    key = make_key(tmp_path / "alice")
    sign(bundle, key)
    allowed = allow(tmp_path / "allowed", key)
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "root"
    with monkeypatch.context() as off:
        refused = UnreachableError("it is off", hint="switch it on", where="here")
        off.setattr("edgepack.deploy.push.connect", raising(refused))
        assert run([*push, "--require-signature", "--allowed-signers", "allowed"]) == 8
    monkeypatch.chdir("/")  # as cron has it
    original = allowed.read_text()
    if change == "signature gone":
        (bundle / MANIFEST_SIGNATURE).unlink()
    elif change == "signed by another":
        sign(bundle, make_key(tmp_path / "bob"))
    else:
        allowed.unlink()
        allow(allowed, make_key(tmp_path / "bob"))
    capsys.readouterr()
    assert run(["rollout", "resume"]) == 7
    assert "signed" in capsys.readouterr().err
    assert not root.exists()
    sign(bundle, key)
    allowed.write_text(original)
    assert run(["rollout", "resume"]) == 0
    assert (root / "tiny" / "current" / MANIFEST_SIGNATURE).exists()


def raising(error: Exception) -> Callable[..., NoReturn]:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail
