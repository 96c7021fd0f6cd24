"""Import paths of chuk-lazarus: change only the root of your imports, `chuk_lazarus`, to
`phalanx.compat.chuk_lazarus`."""
