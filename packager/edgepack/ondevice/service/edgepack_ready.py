"""Ask a service on this machine whether it is ready: exit code 0, or 1 with the reason.

::

    python service/edgepack_ready.py [http://127.0.0.1:8080]

For health checks of containers: no proxy is asked, and of ``https`` the certificate is not checked,
because it is for another name. Needs Python 3.8 or newer; nothing else.
"""

from __future__ import annotations

import http.client
import ssl
import sys
import urllib.parse
from typing import Sequence

ADDRESS = "http://127.0.0.1:8080"
TIMEOUT_S = 5.0


def explain_not_ready(address: str) -> str:
    """Return why a service is not ready, in words; empty where it is."""
    try:
        parts = urllib.parse.urlsplit(address)
        host = parts.netloc or address
        connection = (
            http.client.HTTPSConnection(
                host,
                timeout=TIMEOUT_S,
                context=ssl._create_unverified_context(),  # noqa: S323, SLF001  (see above)
            )
            if parts.scheme == "https"
            else http.client.HTTPConnection(host, timeout=TIMEOUT_S)
        )
        connection.request("GET", "/v2/health/ready")
        status = connection.getresponse().status
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"{address}: {error!r}"
    return "" if status == http.client.OK else f"{address}: HTTP {status}"


def main(arguments: Sequence[str]) -> int:
    """Ask, and return the exit code."""
    why = explain_not_ready(arguments[0] if arguments else ADDRESS)
    if why:
        print(why, file=sys.stderr)
    return 1 if why else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
