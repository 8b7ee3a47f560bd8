"""Shape aliases, and the words this package uses.

Axes: `images` images of one call, `groups` target batches in it, `classes`, `feature` width of the
penultimate layer, `rows` and `width` of a slot's matrix.

Words: *source* and *target* are data; the *backbone* is the classifier we were lent (θ_s); a *slot* is a
layer of it whose parameters can be generated; the *generator* is φ; a *group* is one target batch (one or
more images that share generated parameters); a *stream* is what arrives at test time.
"""

from jaxtyping import Float, Int64
from torch import Tensor

Images = Float[Tensor, "images channels height width"]
Groups = Int64[Tensor, " images"]
Logits = Float[Tensor, "images classes"]
Features = Float[Tensor, "images feature"]
Rows = Float[Tensor, "*lead rows width"]
Params = dict[str, Tensor]
"""A model, or a part of one: parameter name → tensor. Generated ones carry a leading group axis."""
