"""Sia: GPUs of several kinds for the goodput of all jobs, by an integer program in every interval."""
