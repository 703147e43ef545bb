"""HFTA (Wang et al., MLSys 2021) on the CPU: models, operators fused by hand, steps and the experiment.

Needs the extra `torch`.
"""
