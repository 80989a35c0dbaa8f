"""Optional packages: the only place that imports them, and only inside functions."""
