"""The whole road on the bundled example: ``edgepack demo``, and proof of a target on a device."""
