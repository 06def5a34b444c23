"""From a failing log to its root cause, and the echoes that it explains."""
