"""`halfbyte release`: run halfbyte's commands in order, keep finished stages, and issue a verdict."""
