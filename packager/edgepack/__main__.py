"""``python -m edgepack``."""

from edgepack.cli import main

main()
