"""Stages that rewrite a plan: power cap, batch size, host demand, fusion."""
