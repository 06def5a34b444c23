"""envbuild: DeepSpeed ZeRO-3 offload environments that have proved themselves."""

__version__ = "0.1.0"

# Where this is set, events go as lines of JSON into the file that it names, for whoever started the program.
EVENTS_VARIABLE = "ENVBUILD_EVENTS"

# Where this is set, it holds values of variables that are named elsewhere, as a JSON object: a command line has names
# only, since every user of a host can read it.
VALUES_VARIABLE = "ENVBUILD_VALUES"

# Variables that this process has set for itself; its children do not see them (process.environment).
own_variables: set[str] = set()
