"""SWE-bench end to end: run, evaluate, report."""
