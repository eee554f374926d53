"""What on-prem and cloud leases share: the guard, its spec, and the client of a lease's cluster."""
