"""What hosts send to a device and run there: push agent, leases, clocks, supervisor."""
