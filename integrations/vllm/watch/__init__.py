"""Counters, event log, misses, spans and the KV socket: all that follows what happens to jobs.

Each is a watcher on the stream of events that retention emits; retention knows none of them.
"""
