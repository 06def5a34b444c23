"""Registries, by the OCI distribution specification: what is in them, and the way of blobs there and back."""

from envbuild.registry.blobs import Blobs
from envbuild.registry.connect import connect
from envbuild.registry.manifests import Descriptor, Index, Manifest, NotUnderstood
from envbuild.registry.reference import HUB, Reference, mirrored, parse
from envbuild.registry.repository import Repository
from envbuild.registry.session import Session
from envbuild.registry.types import Access, Again, Damaged, NoAccess
from envbuild.registry.upload import Sent, push_blob

__all__ = [
    "HUB",
    "Access",
    "Again",
    "Blobs",
    "Damaged",
    "Descriptor",
    "Index",
    "Manifest",
    "NoAccess",
    "NotUnderstood",
    "Reference",
    "Repository",
    "Sent",
    "Session",
    "connect",
    "mirrored",
    "parse",
    "push_blob",
]
