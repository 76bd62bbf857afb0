"""The client: a session, its jobs, and their calls through the OpenAI SDK.

The public names are those of `agentkv` itself. The modules, from the top down: session, openai_sdk,
tagged_call, job, threads, server, transport, feedback, ledger, replies, context.
"""
