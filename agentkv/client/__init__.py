"""The client: a session, its jobs, and their calls through SDKs and HTTP libraries.

The public names are those of `agentkv` itself. The modules, from the top down: session, context,
tagger, server, job and delivery, patches.
"""
