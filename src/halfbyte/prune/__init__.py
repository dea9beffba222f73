"""Which routed experts stay: from the statistics of a calibration to a plan that can be read, edited and applied."""
