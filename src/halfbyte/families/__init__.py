"""Model families as data: the role of each tensor, and the linears that engines fuse."""
