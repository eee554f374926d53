"""For tests, ours and those of plugin authors: builders, fakes, the provider contract."""
