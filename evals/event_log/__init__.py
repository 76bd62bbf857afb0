"""Reads what a server with the plugin recorded of each job, and adds it up."""
