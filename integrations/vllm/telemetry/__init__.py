"""What the policy did, as counters, Prometheus series and a log of events."""
