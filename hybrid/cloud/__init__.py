"""Rented leases: user data, launch and teardown over any provider, and the sweep for leaks."""
