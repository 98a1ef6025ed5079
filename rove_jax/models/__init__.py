"""The decoder and its functional form, named sizes, and what they cost."""
