"""A program that runs inside a training that is watched. Standard library only; nothing here imports envbuild."""
