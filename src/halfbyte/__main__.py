"""`python -m halfbyte` is the command `halfbyte`."""

from halfbyte.machine.python_path import remove_current_folder

if __name__ == "__main__":
    remove_current_folder()  # before anything else is imported
    from halfbyte.cli.main import main

    main()
