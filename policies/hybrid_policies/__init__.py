"""The policies and strategies that ship with Hybrid."""
