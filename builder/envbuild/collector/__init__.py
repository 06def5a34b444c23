"""What a machine is and has, collected and not judged: the program behind ``envbuild doctor`` and ``doctor.pyz``.

Standard library and pyelftools only, Python 3.6 and later: no walrus, no ``from __future__ import annotations``, no
dataclasses. Everything in here is imported relatively, because in the archive the package has another name.
"""
