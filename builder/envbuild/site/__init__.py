"""What is particular to one site: mirrors, proxies, certificates, folders. None of it may reach an image.

``config`` reads envbuild.toml and the environment, ``pip`` adds the host's own pip configuration, ``apt`` its package
mirrors, and ``secrets`` turns all of it into the files that a build mounts and never keeps.
"""
