"""Plotly figures and the SVG headline."""
