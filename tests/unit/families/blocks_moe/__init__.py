"""A made-up family whose names differ from every shipped one, added as this folder alone."""
