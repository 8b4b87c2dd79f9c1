"""No secret shows anywhere: a password and a private key are searched for in all that comes out."""

from __future__ import annotations

import gc
import io
import json
import logging
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml
from edgepack.cli.main import run
from edgepack.demo.server import LoopbackServer, make_key
from edgepack.deploy import operations
from edgepack.deploy.fleet.store import ProvisionOptions
from edgepack.deploy.push import push, rollback
from edgepack.devices.inventory import load_device
from edgepack.devices.probing import probe
from edgepack.devices.transports import connect
from edgepack.errors import EdgepackError
from edgepack.project.profile import find_host_target

from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle

PASSWORD = "canary-Q7w3Lm9x"
OTHER_PASSWORD = "canary-which-is-wrong"
VARIABLE = "BOARD_PASSWORD"


class Board:
    """A server that lets in with the password, an inventory with it, and all that was said."""

    def __init__(self, folder: Path, home: Path, server: LoopbackServer) -> None:
        self.folder = folder
        self.home = home
        self.server = server
        self.used_passwords: list[str] = []
        self.said: list[str] = []
        self.started: list[str] = []
        self.key = folder / "refused_key"
        make_key(self.key)
        self.root = folder / "root"
        self.write_inventory()
        is_accepted = server.is_accepted

        def note(key: object = None, password: str | None = None) -> bool:
            self.used_passwords += [password] if password else []
            return is_accepted(key=key, password=password)  # type: ignore[arg-type]

        server.is_accepted = note  # type: ignore[method-assign,assignment]

    def write_inventory(self, **changes: object) -> None:
        entry = {
            "transport": "ssh",
            "target": find_host_target(),
            "host": self.server.host,
            "port": self.server.port,
            "user": self.server.user,
            "key": str(self.key),
            "password_env": VARIABLE,
            "host_key": self.server.host_key_fingerprint,
            "ssh_config": os.devnull,
            "root": str(self.root),
            "python": sys.executable,
        }
        document = {"schema_version": 1, "devices": {"board": entry | changes}}
        (self.folder / "devices.yaml").write_text(yaml.safe_dump(document))

    def run(self, *arguments: str) -> int:
        """Run a command as a user does, and keep what it says."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = run(list(arguments))
        self.said += [out.getvalue(), err.getvalue()]
        assert "Traceback" not in err.getvalue()
        return code

    def fail(self, action: Callable[[], object]) -> None:
        """Run what has to fail, and keep all that its error shows."""
        with pytest.raises(EdgepackError) as caught:
            action()
        error = caught.value
        self.said += [str(error), repr(error), error.hint, *map(str, error.args)]
        self.said += traceback.format_exception(error)
        with_locals = traceback.TracebackException.from_exception(error, capture_locals=True)
        self.said += with_locals.format()
        self.keep_reprs()

    def keep_reprs(self) -> None:
        """Keep what every object of edgepack.devices says of itself."""
        found = [
            repr(thing)
            for thing in gc.get_objects()
            if str(type(thing).__module__).startswith(
                ("edgepack.devices", "edgepack.deploy.operations")
            )
        ]
        assert found
        self.said += found

    def written(self) -> Iterator[tuple[str, bytes]]:
        """Yield every file that was written, but the private keys themselves."""
        keys = {self.key, self.server.client_key_path, self.folder / "server" / "host_key"}
        for base in (self.folder, self.home):
            for path in base.rglob("*"):
                if path.is_file() and path not in keys:
                    yield str(path), path.read_bytes()


@pytest.fixture
def board(tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Board]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, PASSWORD)
    with LoopbackServer(tmp_path / "server", password=PASSWORD) as server:
        board = Board(tmp_path, own_home, server)
        # No audit hook: Python would call it for each file that any later test opens.
        start = subprocess.Popen.__init__

        def note_argv(self: subprocess.Popen[Any], argv: object, *rest: Any, **names: Any) -> None:
            board.started.append(str(argv))
            start(self, argv, *rest, **names)  # type: ignore[arg-type]

        monkeypatch.setattr(subprocess.Popen, "__init__", note_argv)
        yield board


def secrets(board: Board) -> list[str]:
    body = board.key.read_text().splitlines()[1:-1]
    assert len(body) >= 3
    # The first line of a key is the same in every unencrypted one of its kind.
    return [PASSWORD, OTHER_PASSWORD, *body[1:]]


def require_unseen(board: Board, logged: str) -> None:
    """Fail if a secret is in anything that was said, logged, started or written."""
    texts = {
        "said": "\n".join(board.said),
        "logged": logged,
        "argv": "\n".join(board.started),
        **{name: data.decode("latin-1") for name, data in board.written()},
    }
    assert "ssh" in texts["argv"]
    assert "Beginning auth" in texts["logged"]
    seen = [
        (place, secret)
        for place, text in texts.items()
        for secret in secrets(board)
        if secret in text
    ]
    assert not seen


def write_bundle(folder: Path) -> Path:
    bundle = write_tiny_bundle(folder)
    change_manifest(bundle, lambda manifest: manifest.update(target=find_host_target()))
    return bundle


@pytest.mark.slow(reason="uses every command on a device")
def test_secrets_when_devices_are_used_show_nowhere(
    board: Board, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("asyncssh").setLevel(logging.DEBUG)
    bundle = str(write_bundle(tmp_path / "bundle"))
    assert board.run("device", "list", "--json") == 0
    board.run("device", "check", "board", "--json")
    assert board.run("push", bundle, "--device", "board", "--json") == 0
    assert board.run("device", "verify", "board", "--json") == 0
    assert board.run("bench", bundle, "--device", "board", "--preset", "smoke", "--json") in (0, 11)
    with connect(load_device("board")) as transport:
        board.said.append(repr(probe(load_device("board"), transport)))
        board.said.append(repr(vars(transport)))
        board.keep_reprs()
    assert board.run("audit", "export", "--json") == 0
    assert PASSWORD in board.used_passwords
    require_unseen(board, caplog.text)


@pytest.mark.slow(reason="uses every command on a device")
def test_secrets_when_a_signed_bundle_is_rolled_out_show_nowhere(
    board: Board, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("asyncssh").setLevel(logging.DEBUG)
    subprocess.run(["ssh-keygen", "-q", "-k", "-f", tmp_path / "revoked"], check=True)
    config = tmp_path / "config"
    config.write_text(f"RevokedHostKeys {tmp_path}/revoked\n")
    board.write_inventory(ssh_config=str(config), key=None)
    public = subprocess.run(
        ["ssh-keygen", "-y", "-f", board.key], capture_output=True, text=True, check=True
    ).stdout
    (tmp_path / "signers").write_text(f"me {public}")
    bundle = str(write_bundle(tmp_path / "bundle"))
    assert board.run("sign", bundle, "--key", str(board.key), "--json") == 0
    signed = ["--allowed-signers", str(tmp_path / "signers")]
    assert board.run("verify", bundle, *signed, "--json") == 0
    to_all = ["push", bundle, "--device", "all", "--no-self-test", "--tries", "1", *signed]
    is_accepted = board.server.is_accepted
    board.server.is_accepted = lambda **offered: hang_up(board)  # type: ignore[method-assign]
    assert board.run(*to_all, "--json") == 8
    board.fail(lambda: push(Path(bundle), load_device("board"), self_test=False))
    assert any("was lost" in text for text in board.said)
    board.server.is_accepted = is_accepted  # type: ignore[method-assign]
    assert board.run("rollout", "resume", "--json") == 0
    for words in (["list"], ["status"], ["status", "1"]):
        assert board.run("rollout", *words, "--json") == 0
    board.run("device", "who", "board", "--json")
    assert board.run("audit", "export", "--json") == 0
    started = "\n".join(board.started)
    assert all(words in started for words in ("'ssh', '-G'", "'ssh-keygen', '-Q'", "'-Y', 'sign'"))
    assert any("rollouts" in name for name, _ in board.written())
    require_unseen(board, caplog.text)


def hang_up(board: Board) -> bool:
    """Cut the connection in the middle of a login."""
    for connection in board.server.connections:
        connection.abort()
    return False


@pytest.mark.slow(reason="uses every command on a device")
def test_secrets_when_everything_fails_show_nowhere(
    board: Board,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("asyncssh").setLevel(logging.DEBUG)
    bundle = write_bundle(tmp_path / "bundle")
    address = f"{board.server.user}@{board.server.host}"
    add = ["device", "add", "new", address, "--port", str(board.server.port)]
    add += ["--key", str(board.key), "--fingerprint"]
    assert board.run(*add, "SHA256:" + "A" * 43) == 8
    assert board.run(*add, board.server.host_key_fingerprint) == 8
    board.write_inventory(python=None)
    device = load_device("board")
    board.fail(lambda: operations.provision_device(device, ProvisionOptions(offline=True)))
    board.fail(lambda: rollback("tiny", device))
    shutil.rmtree(board.root, ignore_errors=True)
    board.root.write_text("in the way")
    board.fail(lambda: push(bundle, device, self_test=False))
    board.root.unlink()
    (bundle / "models" / "cpu-fp32.onnx").write_bytes(b"altered")
    board.fail(lambda: push(bundle, device, self_test=False))
    assert PASSWORD in board.used_passwords
    monkeypatch.setenv(VARIABLE, OTHER_PASSWORD)
    board.fail(lambda: push(write_bundle(tmp_path / "second"), device, self_test=False))
    assert board.run("device", "check", "board") == 8
    assert f"the password in {VARIABLE}" in board.said[-1]
    assert OTHER_PASSWORD in board.used_passwords
    monkeypatch.delenv(VARIABLE)
    assert board.run("device", "check", "board") == 8
    board.write_inventory(host_key="SHA256:" + "B" * 43)
    assert board.run("device", "check", "board") == 8
    assert board.run("device", "verify", "board") == 8
    assert board.run("audit", "export", "--json") == 0
    failed = [one for one in json.loads(board.said[-2])["records"] if one["result"] == "failed"]
    assert {one["action"] for one in failed} == {"add", "provision", "rollback", "push"}
    require_unseen(board, caplog.text)


def test_secret_when_it_is_planted_is_found(board: Board, tmp_path: Path) -> None:
    shutil.copy(board.key, tmp_path / "copy")
    board.said.append("Beginning auth")
    board.started.append("ssh")
    with pytest.raises(AssertionError, match="copy"):
        require_unseen(board, "Beginning auth")
    (tmp_path / "copy").unlink()
    board.said.append(f"login with {PASSWORD} failed")
    with pytest.raises(AssertionError, match="said"):
        require_unseen(board, "Beginning auth")
