"""Results of several runs side by side."""
