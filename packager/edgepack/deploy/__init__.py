"""Brings bundles into use on devices: ``push`` leases, sends, self-tests and switches, recorded.

:mod:`.push` is what is done to one device: under a lease (:mod:`.leases`) it has :mod:`.transfer`
put the release beside the current one, has the device's loader try it, switches, and goes back if
that fails; ``rollback`` goes back later. :mod:`.rollouts` does the same to many, when and in which
order :mod:`.fleet` says. Each change of a device is recorded through :mod:`.operations` in the log
of :mod:`.audit`, and :mod:`.verify` compares what lies there with what was pushed.
"""
