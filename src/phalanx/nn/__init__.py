"""Building blocks for policy networks: layers, action distributions and the `PolicyNetwork` protocol."""

from phalanx.extras import require_jax

require_jax(__name__)

from phalanx.nn.distributions import (
    DiagonalGaussian as DiagonalGaussian,
    Distribution as Distribution,
    Factored as Factored,
    Key as Key,
    Keys as Keys,
    MaskedCategorical as MaskedCategorical,
)
from phalanx.nn.layers import (
    Attention as Attention,
    Conv3x3 as Conv3x3,
    Dense as Dense,
    LayerNorm as LayerNorm,
    pool as pool,
)
from phalanx.nn.policy_network import PolicyNetwork as PolicyNetwork, select_action as select_action
