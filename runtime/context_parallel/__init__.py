"""Context parallelism: attention over a sequence whose tokens lie on several ranks."""
