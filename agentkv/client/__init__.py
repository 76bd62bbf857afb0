"""The client: a session, its jobs, and their calls through SDKs and HTTP libraries.

The public names are those of `agentkv` itself. The modules, from the top down: session,
clients, tagger, job, server, delivery and ledger, calls, context, patches.
"""
