"""Run a plan on one of the backends, with a journal, resume and atomic writes."""
