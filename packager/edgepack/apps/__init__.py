"""Makes what an app developer gets: sources, names of their API, Maven artifacts."""
