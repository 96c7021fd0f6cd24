"""Drop-in replacement for `jaxarc.state`."""

from phalanx.arc.state import ArcState as ArcEnvState

__all__ = ["ArcEnvState"]
