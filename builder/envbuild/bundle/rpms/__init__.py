"""RPM packages for an offline bundle: planned, fetched, checked, written, and resolved once more from what was written."""
