"""From what was collected of a machine to findings: why training does not start, root first."""
