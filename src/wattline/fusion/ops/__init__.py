"""Lowering rules by kind of operator; importing the package registers them."""

from wattline.fusion.ops import (  # noqa: F401
    attention,
    autograd,
    conv,
    dropout,
    embedding,
    linear,
    loss,
    norm,
    pool,
    recurrent,
    shape,
)
