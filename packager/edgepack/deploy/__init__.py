"""Brings bundles into use on devices: ``push`` leases, sends, self-tests, switches and records.

:mod:`.push` works on one device: under a lease (:mod:`.leases`) it has :mod:`.transfer` put the
release beside the current one, has the device's loader try it, switches, and goes back if that
fails; ``rollback`` goes back later. :mod:`.rollouts` does the same to many devices, at the times
and in the order that :mod:`.fleet` decides. Each change of a device is recorded through
:mod:`.operations` in the log of :mod:`.audit`, and :mod:`.verify` compares the files on a device
with what was pushed.
"""
