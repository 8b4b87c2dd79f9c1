"""``edgepack demo``: the whole road on the bundled example, over real SSH."""
