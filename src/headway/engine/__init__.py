"""Where processes come from, how bytes reach them, and how their end is noticed."""
