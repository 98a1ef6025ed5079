"""Language models whose attention is position-relative by rotation: RoPE on queries and keys, RoVE on values too."""

__version__ = "0.1.0"
