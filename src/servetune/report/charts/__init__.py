"""Charts of a report: specifications as data (specs.py) and their drawing as SVG (svg.py)."""
