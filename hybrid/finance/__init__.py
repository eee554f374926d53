"""What it cost: reports over the ledger."""
