"""Offline bundles: what a site without a network needs to become an environment, in one folder that proves itself."""
