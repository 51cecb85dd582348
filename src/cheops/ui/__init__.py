"""Chephren, the web interface: pages, styles and scripts as they are served, and what serves them."""
