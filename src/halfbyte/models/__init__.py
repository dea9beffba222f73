"""What halfbyte knows of model families: which tensor plays which role, which linears engines fuse. Data, not code."""
