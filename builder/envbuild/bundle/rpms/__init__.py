"""RPM packages for an offline bundle: planned, fetched, checked, written, and resolved again from that."""
