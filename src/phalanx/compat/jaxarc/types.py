"""Drop-in replacement for `jaxarc.types`."""

from phalanx.arc.tasks import ArcTask as JaxArcTask

__all__ = ["JaxArcTask"]
