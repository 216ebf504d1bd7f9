"""What people look at: text tables, SVG and HTML pictures."""
