"""Choose which routed experts to keep: from calibration statistics to a plan that can be read, edited and applied."""
