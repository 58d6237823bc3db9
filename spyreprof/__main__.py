"""`python -m spyreprof`."""

from spyreprof.cli import main

if __name__ == "__main__":
    main()
