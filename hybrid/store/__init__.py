"""The durable record: tables, transitions, ledger and journal on SQLite or PostgreSQL."""
