"""OpenSSH's own server on 127.0.0.1, without a configuration of the system's and without root.

One ``sshd -i`` for each connection, as inetd starts it: the port is the system's choice, and every
connection is a process that is known. It lets in the user who runs this, by one new key.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from edgepack.demo.server import format_public_key, make_key

_CONFIG = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitUserRC no
PrintMotd no
Subsystem sftp internal-sftp
LogLevel ERROR
"""
_SEPARATION = Path("/run/sshd")
"""As root, sshd wants this empty folder; packages make it when they start the service."""
_END_S = 10.0


def find_sshd() -> str | None:
    """Return where OpenSSH's server is: it wants to be started by its absolute path."""
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def put_python_first() -> str:
    """Return a PATH on which ``python3`` is the one that runs this."""
    return f"{Path(sys.executable).resolve().parent}:{os.environ.get('PATH', '')}"


class OpenSshServer:
    """A context manager; at its end no connection is left.

    Args:
        folder: A folder of its own for keys, configuration and ``log``.
        environment: Variables that every command gets.
        under: A command that sshd is started by, such as ``["prlimit", "--fsize=1000"]``.
        login: What the user's shell runs before each command.
        options: More lines of its configuration.

    Raises:
        FileNotFoundError: (on entering) There is no sshd.
    """

    host = "127.0.0.1"

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        under: Sequence[str] = (),
        login: str = "",
        options: Sequence[str] = (),
    ) -> None:
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self.client_key_path = folder / "client_key"
        self.home = folder / "home"
        """Of every command: the user's own shell settings are not read."""
        self._folder = folder
        self._environment = environment or {}
        self._under = list(under)
        self._login = login
        self._options = options
        self._sessions: list[subprocess.Popen[bytes]] = []
        self._listener = socket.create_server((self.host, 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        sshd = find_sshd()
        if sshd is None:
            raise FileNotFoundError("sshd")
        if os.geteuid() == 0:
            _SEPARATION.mkdir(mode=0o755, exist_ok=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._host_key = make_key(self._folder / "host_key")
        client_key = make_key(self.client_key_path)
        (self._folder / "authorized_keys").write_text(format_public_key(client_key) + "\n")
        (self._folder / "known_hosts").write_text(
            f"[{self.host}]:{self.port} {format_public_key(self._host_key)}\n"
        )
        self.home.mkdir(exist_ok=True)
        environment = {"HOME": str(self.home), **self._environment}
        variables = " ".join(f"{name}={value}" for name, value in environment.items())
        config = f"{_CONFIG.format(folder=self._folder)}SetEnv {variables}\n"
        if self._login:
            config += f'ForceCommand {self._login}; eval "$SSH_ORIGINAL_COMMAND"\n'
        config += "".join(f"{line}\n" for line in self._options)
        (self._folder / "sshd_config").write_text(config)
        self._argv = [*self._under, sshd, "-i", "-f", str(self._folder / "sshd_config")]
        self._argv += ["-E", str(self._folder / "log")]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # wakes the thread; not every system lets it
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(_END_S)
        self.drop_connections()

    @property
    def host_key_fingerprint(self) -> str:
        """As OpenSSH prints it."""
        return self._host_key.get_fingerprint()

    def client_options(self) -> list[str]:
        """Return what makes ``ssh`` and ``scp`` use this server's keys, nothing of the user's."""
        options = ["-F", os.devnull, "-i", str(self.client_key_path)]
        for option in (
            "IdentitiesOnly=yes",
            "BatchMode=yes",
            "StrictHostKeyChecking=yes",
            f"UserKnownHostsFile={self._folder / 'known_hosts'}",
            f"HostKeyAlias=[{self.host}]:{self.port}",
        ):
            options += ["-o", option]
        return options

    def drop_connections(self) -> None:
        """Kill the server's side of every connection."""
        for session in list(self._sessions):
            for pid in [session.pid, *_sshd_children(session.pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            session.wait(_END_S)

    def _listen(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            with connected:
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sessions = [each for each in self._sessions if each.poll() is None]
                self._sessions.append(
                    subprocess.Popen(
                        self._argv,
                        stdin=connected,
                        stdout=connected,
                        stderr=subprocess.DEVNULL,
                        start_new_session=True,
                    )
                )


def _sshd_children(pid: int) -> list[int]:
    """Return the processes that sshd made of itself for a connection; Linux only."""
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in children if _is_sshd(int(child))]
    return []


def _is_sshd(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("sshd")
    except OSError:
        return False
