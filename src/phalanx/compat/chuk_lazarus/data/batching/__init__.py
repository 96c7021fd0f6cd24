"""Drop-in replacements for `chuk_lazarus.data.batching`."""
