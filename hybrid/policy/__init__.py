"""Policy files: TOML to `hybrid.core.policy.Policy`, with errors that name key and line."""
