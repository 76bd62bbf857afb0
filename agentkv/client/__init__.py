"""The client: a session, its jobs, and their calls through SDKs and HTTP libraries.

The public names are those of `agentkv` itself. The modules, from the top down: session,
sdk_clients and http_clients, tagged_call, job, server, transport, feedback, ledger, replies,
context, patches.
"""
