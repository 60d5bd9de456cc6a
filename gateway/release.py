"""Whose surface this is."""

TGI_VERSION = "3.3.7"
"""The release of TGI that answers like this; clients parse it."""
