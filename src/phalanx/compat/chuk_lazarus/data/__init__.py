"""Drop-in replacements for the data modules of chuk-lazarus."""

from phalanx.compat.chuk_lazarus.data.batching import *  # noqa: F403
