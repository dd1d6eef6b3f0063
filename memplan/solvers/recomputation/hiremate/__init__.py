"""Hiremate and H-ILP: a hierarchy solved level by level."""
