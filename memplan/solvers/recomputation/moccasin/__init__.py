"""Moccasin: a constraint program over intervals."""
