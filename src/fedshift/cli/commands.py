"""A group of commands in which an option that takes one value is given once."""

from __future__ import annotations

from collections import Counter
from typing import Any

from typer.core import TyperGroup

from fedshift.errors import FedshiftError, UnknownNameError


class Commands(TyperGroup):
    """Commands that refuse an option that is given again, of which typer would take the last.

    Contexts and commands are Any: which package defines them differs between releases of typer.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command, and its arguments.

        Raises:
            FedshiftError: there is no such command, or an option that takes one value is given several times.
        """
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise UnknownNameError("command", args[0], list(self.commands))  # which releases of typer word differently
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not ctx.resilient_parsing:
            within = type(ctx)(command, parent=ctx, info_name=name)
            order: list[Any] = command.make_parser(within).parse_args([*rest])[2]
            for given, times in Counter(order).items():
                if times > 1 and given.param_type_name == "option" and not (given.multiple or given.is_flag):
                    raise FedshiftError(
                        f"{given.opts[0]} is given {times} times: give it once. Where it takes several values, commas "
                        "stand between them, as in --method fedavg,fedsr."
                    )
        return name, command, rest
