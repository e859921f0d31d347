"""Headway turns a plain training function into a run that keeps moving.

Training code imports from :mod:`headway.train` and :mod:`headway.train.torch`; this package itself
holds nothing but its version, so that importing it costs nothing.
"""

__version__ = "0.1.0"
