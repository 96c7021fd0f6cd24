"""Policy networks for ARC, one architecture per module."""

from phalanx.arc.config import ArcConfig
from phalanx.arc.networks.color_equivariant import ColorEquivariantNetwork as ColorEquivariantNetwork
from phalanx.arc.networks.conv import ArcConvNetwork as ArcConvNetwork
from phalanx.arc.networks.stem_and_heads import NUM_SELECTED_CELLS, ArcNetworkConfig as ArcNetworkConfig
from phalanx.arc.networks.transformer import ArcTransformer as ArcTransformer
from phalanx.core.environment import Key

ArcNetwork = ColorEquivariantNetwork | ArcConvNetwork | ArcTransformer


def create_network(config: ArcNetworkConfig, arc: ArcConfig, key: Key) -> ArcNetwork:
    """Create a policy network for the observations and actions of an environment.

    Args:
        config: Architecture and size of the network.
        arc: Settings of the environment.
        key: Random key for the initial parameters.
    """
    if arc.action.selection_format not in NUM_SELECTED_CELLS:
        raise ValueError(
            "policies select points or boxes: set action.selection_format to point or bbox, "
            f"got {arc.action.selection_format!r}"
        )
    if not arc.observation.working_grid:
        raise ValueError("a policy must see the working grid: set observation.working_grid=true")
    match config.kind:
        case "color_equivariant":
            return ColorEquivariantNetwork(config, arc, key=key)
        case "conv":
            return ArcConvNetwork(config, arc, key=key)
        case "transformer":
            return ArcTransformer(config, arc, key=key)
