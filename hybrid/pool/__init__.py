"""The on-prem pool: the standing Ray cluster, its node agents, and leases carved from it."""
