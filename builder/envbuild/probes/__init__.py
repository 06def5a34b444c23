"""Programs that run inside an image, not modules of the builder.

They are started with ``python -I FILE`` from a read-only mount, use the standard library plus what they
probe, support Python 3.7 and later, print one JSON document on stdout, and judge nothing: raw numbers
only. They never import ``envbuild``, and the builder never imports them.
"""
