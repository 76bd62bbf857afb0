"""Adapters between agentkv and servers or agent frameworks, one subpackage or module each."""
