"""The controller: observe, plan, act, and drive each lease and attempt to its end."""
