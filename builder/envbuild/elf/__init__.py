"""Native code as files: what it needs, what it provides, what the loader would choose. Nothing is executed."""
