"""The forms in which bundles are exported."""

from __future__ import annotations

from typing import Literal

ExportFormat = Literal["deb", "ipk", "mender", "oci", "rauc", "yocto"]
