"""Pictures of a plan: one HTML page, and SVG drawings of where layers run and of their memory."""

from portwright.graph.picture.memory import memory_svg
from portwright.graph.picture.page import make_page, write_page, write_svgs
from portwright.graph.picture.wafer import wafer_svg

__all__ = ["make_page", "memory_svg", "wafer_svg", "write_page", "write_svgs"]
