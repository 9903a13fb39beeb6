"""Sizes at which ZeRO works piece by piece, DeepSpeed's defaults."""

LARGEST_BUCKET = 500_000_000
"""Gradients that are reduced over the data-parallel ranks in one go."""
MOST_LIVE = 1_000_000_000
"""Weights that stage 3 keeps gathered, and those that it updates at once."""
MOST_PREFETCHED = 50_000_000
"""Weights that stage 3 gathers ahead of their use."""
PERSISTENT = 100_000
"""A parameter of fewer weights stays gathered under stage 3."""
