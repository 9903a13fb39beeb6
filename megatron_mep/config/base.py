"""The base of every section of a run file: frozen, and closed to keys that nobody reads."""

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """A section of the run file.

    Values are fixed once validated; what follows from them is a property. The string under a field is its
    documentation, in the JSON schema too.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )
