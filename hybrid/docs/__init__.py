"""The documentation, and what makes its reference part from the code itself."""
