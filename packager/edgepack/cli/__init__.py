"""The command line: parsing, printing, exit codes. What commands do lies in the library."""

from edgepack.cli.main import main

__all__ = ["main"]
