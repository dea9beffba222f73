"""A module for each section: from what is known to rows and sentences. The words around them are in ../templates."""
