"""Found by every Python that a measured command starts, because its folder is first on PYTHONPATH.

It waits for DeepSpeed to be imported, and loads the hook then; a Python that never does so pays for a few lines. A
``sitecustomize`` that was there before is run all the same. Python 3.7 and later.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_ENGINE = "deepspeed.runtime.engine"


def _load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Watch:
    """Lets the engine's module be found as ever, and hooks its class when it has been loaded."""

    def __init__(self):
        self._busy = False

    def find_spec(self, name, path=None, target=None):
        if name != _ENGINE or self._busy:
            return None
        self._busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            # Whatever is wrong with measuring, the user's training goes on.
            try:
                folder = os.environ["ENVBUILD_PROFILER"]
                hook = _load(os.path.join(folder, "hook.py"), "envbuild_profiler_hook")
                hook.begin(module.DeepSpeedEngine)
            except Exception as error:
                sys.stderr.write("envbuild: this process is not measured: {}\n".format(error))

        spec.loader.exec_module = exec_module
        return spec


def _chain():
    """Run the sitecustomize that this one hides, as if it had been found."""
    places = [place for place in sys.path if os.path.abspath(place or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", places)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("ENVBUILD_PROFILE") and os.environ.get("ENVBUILD_PROFILER"):
    sys.meta_path.insert(0, _Watch())
_chain()
