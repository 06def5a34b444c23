"""A bill of materials of an image, made from what is in it: its packages, its wheels, its compiled ops."""

from envbuild.sbom.contents import contents, read, wanted
from envbuild.sbom.document import FORMAT, MEDIA_TYPE, dump, revision
from envbuild.sbom.part import Contents, Part, Purl

__all__ = ["FORMAT", "MEDIA_TYPE", "Contents", "Part", "Purl", "contents", "dump", "read", "revision", "wanted"]
