"""Layouts to DTensor placements and back, models to FSDP2, programs to Python source."""
