"""Hybrid: a durable queue above Ray that bursts GPU jobs to rented cloud instances."""

__version__ = "0.1.0"
