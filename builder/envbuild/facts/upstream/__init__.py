"""Reading upstream's own metadata from the package indexes that pip uses here."""

from envbuild.facts.upstream.metadata import Metadata
from envbuild.facts.upstream.page import RemoteFile, Shape
from envbuild.facts.upstream.reader import Upstream

__all__ = ["Metadata", "RemoteFile", "Shape", "Upstream"]
