"""Opens buckets of S3 stores, with what AWS's tools would use: credentials, region, endpoint."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from edgepack.errors import ToolError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config, S3Store


def require_libraries(what: str, instead: str = "") -> None:
    """Check that what speaks with stores is installed.

    Args:
        what: What it is needed for: the subject of the error.
        instead: What else may be done.

    Raises:
        ToolError: It is not.
    """
    try:
        import boto3  # noqa: F401
        import obstore  # noqa: F401
    except ImportError as error:
        raise ToolError(
            f"{what}, and obstore or boto3 is not installed",
            hint=f"pip install 'edgepack[s3]'{instead and f', or {instead}'}",
        ) from error


def open_bucket(
    url: str,
    *,
    connect_s: float,
    whole_s: float,
    answer_s: float | None = None,
    retries: tuple[int, float] = (0, 0.0),
) -> S3Store:
    """Return a client for ``s3://bucket/prefix``; nothing is asked yet.

    Args:
        url: The place.
        connect_s: How long a connection may take, in seconds.
        whole_s: How long a request may take, its content included.
        answer_s: How long the store may be silent. It counts from the beginning of a request, and
            so while one sends, too.
        retries: How often a request is tried again, and for how long in all.
    """
    import boto3
    from obstore.auth.boto3 import Boto3CredentialProvider
    from obstore.store import S3Store

    parts = urlsplit(url)
    session = boto3.Session()
    config: S3Config = {"region": session.region_name or "us-east-1"}
    name = "AWS_ENDPOINT_URL"
    endpoint = os.environ.get(f"{name}_S3") or os.environ.get(name)
    if endpoint:
        config["endpoint"] = endpoint
    options: ClientConfig = {
        "connect_timeout": timedelta(seconds=connect_s),
        "timeout": timedelta(seconds=whole_s),
        "allow_http": bool(endpoint and endpoint.startswith("http://")),
    }
    if answer_s is not None:
        options["read_timeout"] = timedelta(seconds=answer_s)
    most, within_s = retries
    return S3Store(
        parts.netloc,
        config=config,
        prefix=parts.path.strip("/") or None,
        credential_provider=Boto3CredentialProvider(session),
        client_options=options,
        retry_config={"max_retries": most, "retry_timeout": timedelta(seconds=within_s)},
    )


def list_store_problems() -> tuple[type[Exception], ...]:
    """Return what a store, its credentials and the network raise."""
    from botocore.exceptions import BotoCoreError
    from obstore.exceptions import BaseError

    return (BaseError, BotoCoreError, OSError, ValueError)


def explain_store_problem(error: BaseException) -> str:
    """Return what went wrong in a line, without what servers repeat of a request."""
    text = str(error).partition("\n")[0].partition("<")[0]
    return " ".join(text.split())[:300].rstrip(" :") or type(error).__name__
