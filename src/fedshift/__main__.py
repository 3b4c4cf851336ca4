"""``python -m fedshift`` is the command ``fedshift``."""

from fedshift.cli.app import main

main()
