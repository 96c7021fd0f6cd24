"""Training algorithms and the run loop."""

from phalanx.extras import require_jax
from phalanx.lazy_imports import import_lazily

require_jax(__name__)

__getattr__, __dir__, __all__ = import_lazily(__name__, __file__)
