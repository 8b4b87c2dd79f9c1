"""Makes reports and bundles for tests."""
