"""envbuild: DeepSpeed ZeRO-3 offload environments that have proved themselves."""

__version__ = "0.1.0"
