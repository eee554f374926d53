"""Histories of jobs from other systems, in one schema; for the simulator and the predictor."""
