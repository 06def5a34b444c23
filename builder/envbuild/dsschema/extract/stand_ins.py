"""Modules without content, for what is not installed. Only the types of the configuration are asked for."""

import ast
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import types


class Stub(types.ModuleType):
    """A module, function or value without content."""

    __path__ = ()
    __file__ = None
    __version__ = "2.13.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        full = self.__name__ + "." + name
        made = type(name, (), {}) if name[:1].isupper() or name in ("dtype", "device") else Stub(full)
        if self.__name__ == "torch" and name in DTYPES:
            made = Dtype(name)
        elif self.__name__ == "torch" and name == "dtype":
            made = Dtype
        setattr(self, name, made)
        return made

    def __call__(self, *args, **kwargs):
        # As a decorator it returns what it decorates.
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else Stub(self.__name__ + "()")

    def __bool__(self):
        return False

    def __iter__(self):
        return iter(())

    def __mro_entries__(self, bases):
        return ()

    def __getitem__(self, key):
        return self

    def __or__(self, other):
        return self

    def __ge__(self, other):
        return True

    __gt__ = __lt__ = __le__ = __ge__
    __hash__ = object.__hash__

    def __eq__(self, other):
        return self is other


DTYPES = (
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "half",
    "float",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "bool",
)


class Dtype:
    """What stands for a torch.dtype."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return "torch." + {"half": "float16", "float": "float32"}.get(self.name, self.name)


# These look at the machine. None of them has a key of the configuration.
EMPTY = ("deepspeed.accelerator", "deepspeed.ops", "deepspeed.git_version_info")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stand-ins for what is not installed, and DeepSpeed's packages without their initialisation."""

    def __init__(self, source):
        self.source = source

    def find_spec(self, name, path=None, target=None):
        head = name.partition(".")[0]
        if name.startswith(EMPTY):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        if head == "deepspeed":
            folder = os.path.join(self.source, *name.split("."))
            if os.path.isdir(folder):
                spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
                spec.submodule_search_locations = [folder]
                return spec
            if os.path.isfile(folder + ".py"):
                return None
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        if head != "torch" and importlib.machinery.PathFinder.find_spec(head) is not None:
            return None
        if not asked_by_deepspeed():
            # Others have their own ways to do without a module.
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        folder = (spec.submodule_search_locations or [None])[0] if spec.name.startswith("deepspeed") else None
        if spec.name == "deepspeed.git_version_info":
            stub = Stub(spec.name)
            stub.version = installed(self.source)
            return stub
        return Package(spec.name, folder) if folder else Stub(spec.name)

    def exec_module(self, module):
        pass


def installed(source):
    """The version of an unpacked source archive, by the file beside the package."""
    with open(os.path.join(source, "deepspeed", "git_version_info_installed.py"), encoding="utf-8") as file:
        tree = ast.parse(file.read())
    return next(
        node.value.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "version"
    )


def asked_by_deepspeed():
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith("importlib") and name not in (
            __name__,
            "_frozen_importlib",
            "_frozen_importlib_external",
        ):
            return name.startswith("deepspeed")
        frame = frame.f_back
    return False


class Package(Stub):
    """A package that was not initialised: a name is fetched from the module that its initialisation has it from."""

    def __init__(self, name, folder):
        super().__init__(name)
        self.__path__ = [folder]

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__name__ == "deepspeed.comm" and name == "get_rank":
            return unready
        below = os.path.join(self.__path__[0], name)
        if os.path.isdir(below) or os.path.isfile(below + ".py"):
            return importlib.import_module(self.__name__ + "." + name)
        for module in self.homes_of(name):
            try:
                value = getattr(importlib.import_module("." + module, self.__name__), name)
            except Exception:
                continue
            if not isinstance(value, Stub):
                setattr(self, name, value)
                return value
        return super().__getattr__(name)

    def homes_of(self, name):
        path = os.path.join(self.__path__[0], "__init__.py")
        if not os.path.isfile(path):
            return
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
        for node in ast.walk(tree):
            near = isinstance(node, ast.ImportFrom) and node.level == 1 and node.module
            if near and any(alias.name in (name, "*") for alias in node.names):
                yield node.module


def unready(*args, **kwargs):
    raise RuntimeError("no process group")
