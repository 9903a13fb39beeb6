"""The classes that a model's encoding and tricks are made of; an export writes this file anew."""

CLASSES: dict[str, type] = {}
"""By the names that the configuration has for them."""
