"""The 15 common corruptions at 5 severities (Hendrycks & Dietterich, 2019), for any images, as they are needed."""

from generalizeformer.imaging.corruptions._apply import NAMES, corrupt

__all__ = ["NAMES", "corrupt"]
