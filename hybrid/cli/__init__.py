"""The `hybrid` command: one module per noun, HTTP only, imports kept light."""
