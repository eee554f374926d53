"""A cloud made of processes on this machine: what Hybrid rents when it is tried out, and where
the faults of real clouds are rehearsed. Not a mock: jobs really run there."""

from hybrid_local.provider import LocalProvider

__all__ = ["LocalProvider"]
