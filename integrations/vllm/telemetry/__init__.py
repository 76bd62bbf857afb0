"""Counters, Prometheus series and the event log of the policy's decisions."""
