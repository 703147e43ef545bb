"""Rules: one operator for all members of an array, a file for each kind."""

from wattline.fusion.ops import (  # noqa: F401
    attention,
    conv,
    linear,
    lookup,
    loss,
    noise,
    norm,
    pool,
    recurrent,
    shape,
)
