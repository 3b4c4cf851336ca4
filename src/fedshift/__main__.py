"""``python -m fedshift`` is the command ``fedshift``."""

from fedshift.cli.main import main

main()
