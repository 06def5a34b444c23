"""envbuild: DeepSpeed ZeRO-3 offload environments that have proved themselves."""

__version__ = "0.1.0"

# Where this is set, events go as lines of JSON into the file that it names, for whoever started the program.
EVENTS_VARIABLE = "ENVBUILD_EVENTS"

# Variables that this process has set for itself; its children do not see them (process.environment).
own_variables: set[str] = set()
