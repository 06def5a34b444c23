"""A DeepSpeed configuration as people write it: read with its places, held against rules, and mended.

``document.read`` and ``linting.lint`` are the way in; ``context`` says what the configuration is for.
"""
