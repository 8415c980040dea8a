"""`python -m pearl`: the command `pearl`, where its script is not on the path."""

from pearl.cli.main import main

if __name__ == "__main__":
    main()
