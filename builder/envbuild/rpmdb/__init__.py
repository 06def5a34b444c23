"""The RPM database as bytes: which packages an image says it has, and which files they brought. No rpm is run."""

from envbuild.rpmdb.database import FOLDERS, LARGEST, Database, read, wanted
from envbuild.rpmdb.faults import RpmdbError
from envbuild.rpmdb.header import Header, parse
from envbuild.rpmdb.package import Package, PackageFile, package

__all__ = [
    "FOLDERS",
    "LARGEST",
    "Database",
    "Header",
    "Package",
    "PackageFile",
    "RpmdbError",
    "package",
    "parse",
    "read",
    "wanted",
]
