"""RULER (Hsieh et al. 2024, arXiv 2404.06654): 13 tasks of any length, written to their published parameters, fitted to
the tokenizer of a run, and scored by how likely the model finds the answer."""
