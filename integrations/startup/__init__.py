"""The folder that `agentkv run` puts on a program's path, where Python finds `sitecustomize`."""
