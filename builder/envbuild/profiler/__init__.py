"""Programs that measure a training from inside an image, or under any interpreter; no modules of the builder.

As the probes: ``python -I FILE`` from a read-only mount, the standard library plus what is measured, Python 3.7 and
later, raw figures only, never an import of ``envbuild``. They stand in a folder of their own because the probes'
sources date every proof of an image, and a measurement proves nothing. What both need is loaded from the probes'
folder, which is mounted beside (``--probes``).
"""
