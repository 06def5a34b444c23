"""Bundles for sites without a network: what they hold, how they are written, verified and taken in."""
