"""Follows what happens to jobs: counters, event log, misses, spans and the KV socket.

Each is a watcher on the stream of events that retention emits; retention knows none of them.
"""
