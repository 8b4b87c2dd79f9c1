"""`edgepack optimize`: the best variant with the best settings for one device, within limits."""
