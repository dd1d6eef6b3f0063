"""`python -m memplan`: the command `plan`."""

from .cli.main import main

if __name__ == "__main__":
    main()
