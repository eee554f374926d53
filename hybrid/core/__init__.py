"""The decision core: pure functions over values. No I/O, clock, randomness or environment."""
