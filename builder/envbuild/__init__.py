"""envbuild: DeepSpeed ZeRO-3 offload environments that have proved themselves."""

__version__ = "0.1.0"

# Variables that this process has set for itself; its children do not see them (process.environment).
own_variables: set[str] = set()
