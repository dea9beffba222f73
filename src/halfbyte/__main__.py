"""`python -m halfbyte` is the command `halfbyte`."""

from halfbyte.machine.python_path import distrust_folder

if __name__ == "__main__":
    distrust_folder()  # before anything else is imported
    from halfbyte.cli.main import main

    main()
