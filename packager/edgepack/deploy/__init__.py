"""Brings bundles into use on devices: push, lease, self-test, switch, rollback, audit."""
