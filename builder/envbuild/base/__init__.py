"""Base images: pulled where a registry answers, bootstrapped from packages where none does."""

from __future__ import annotations

from envbuild.base.choose import BaseUsed, Declared, declared_base, ensure, ensure_toolkit

__all__ = ["BaseUsed", "Declared", "declared_base", "ensure", "ensure_toolkit"]
