"""Measurements on a trained model: likelihoods (`engine`) and what is made of them, text sampled from it, its speed.

The functions here take a model config, parameters and tokens; `runs` connects them with a run folder on disk.
"""
