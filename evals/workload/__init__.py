"""Workloads: jobs, their tools and arrival times, made from a seed or read from a trace."""
