"""Figures as data, and the SVG headline."""
