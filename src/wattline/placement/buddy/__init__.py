"""Buddy placement: aligned blocks of GPUs and of whole nodes."""
