"""Measurements on a trained model: perplexity against context length, and text sampled from it.

The functions here take a model config, parameters and tokens; `runs` connects them with a run folder on disk.
"""
