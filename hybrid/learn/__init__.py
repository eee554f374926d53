"""Learning from history, and measuring how well that goes."""
