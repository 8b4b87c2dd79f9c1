"""The transport over SSH: configuration, host keys, hops, authentication."""
