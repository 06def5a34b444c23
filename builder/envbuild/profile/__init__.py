"""What a training did, measured; and what follows from it: a comparison, a bottleneck, a baseline. Pure."""
