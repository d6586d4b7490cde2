"""``python -m forge_collab``: the program ``forge``."""

from forge_collab.cli.main import main

if __name__ == "__main__":
    main()
