"""Shapes as types: `Float[Tensor, "B H T D"]` on public signatures.

The types come from jaxtyping if it is installed; the tests install it and check every call.
Otherwise they are plain `Tensor`, so that the library needs torch only.

Letters: B batch, H heads, T queries, S keys, D head dimension of queries and keys,
E head dimension of values, M model width.

`Mask` is the mask of a caller of a model: booleans, or the numbers 0 and 1 in any dtype.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Annotated as Bool
    from typing import Annotated as Float
    from typing import Annotated as Int
    from typing import Annotated as Mask
else:
    try:
        from jaxtyping import Bool, Float, Int
        from jaxtyping import Shaped as Mask
    except ImportError:

        class _Unchecked:
            def __class_getitem__(cls, item):
                return item[0]

        Bool = Float = Int = Mask = _Unchecked

__all__ = ["Bool", "Float", "Int", "Mask"]
