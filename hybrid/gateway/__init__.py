"""The HTTP door: Ray's Jobs API for `ray job submit`, and Hybrid's own API."""
