"""Pictures of a plan: one HTML page, and SVG drawings of where layers run and of their memory."""

from portwright.graph.picture.figures import memory_svg, wafer_svg
from portwright.graph.picture.page import make_page, write_page, write_svgs

__all__ = ["make_page", "memory_svg", "wafer_svg", "write_page", "write_svgs"]
