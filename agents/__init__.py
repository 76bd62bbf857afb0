"""Reference agents built on agentkv."""
