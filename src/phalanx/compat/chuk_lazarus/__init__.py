"""Import paths of chuk-lazarus.

To use them, change the root of your imports from `chuk_lazarus` to `phalanx.compat.chuk_lazarus`.
"""
