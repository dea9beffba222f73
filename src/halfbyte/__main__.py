"""`python -m halfbyte` is the command `halfbyte`."""

from halfbyte.cli import main

if __name__ == "__main__":
    main()
