"""The tables of docs/command-line.md, made from the declarations of options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from triosim import plugins
from triosim.config.option import Option
from triosim.config.parts import declared, flags, takes_text
from triosim.config.run_config import COMMON, CONDITIONS


def option_tables(of_simulate: Iterable[Option] = ()) -> str:
    """Return a table for each heading of ``triosim simulate --help``; ``of_simulate`` are its options beside those of a run."""
    every = [*COMMON.values(), *flags().values(), *CONDITIONS]
    shown = [*(option for option in every if option.commands), *of_simulate]
    lines: list[str] = []
    for panel in dict.fromkeys(option.panel for option in shown):
        lines += [f"{panel or 'General'}:", "", "| option | meaning | default | also in |", "| --- | --- | --- | --- |"]
        lines += [_row(option, run=option in every) for option in shown if option.panel == panel]
        lines.append("")
    lines += ["Given as `--option KEY=VALUE`:", "", "| key | meaning | default |", "| --- | --- | --- |"]
    lines += dict.fromkeys(f"| `{one.key or one.name}` | {_text(one)} | {_default(one)} |" for one in _by_name())
    return "\n".join(lines) + "\n"


def _row(option: Option, *, run: bool) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.declaration.split("/"), option.short) if name)
    also = ", ".join(command for command in option.commands if command != "simulate") if run else ""
    return f"| {names} | {_text(option)} | {_default(option)} | {also} |"


def _text(option: Option) -> str:
    return option.help.replace("|", "\\|")


def _default(option: Option) -> str:
    if option.default is None or option.default == "" or isinstance(option.default, bool):
        return ""
    return f"`{option.default}`"


def _by_name() -> Iterator[Option]:
    """Yield what the parts that ship with triosim read from ``--option``."""
    for group in ("extrapolators", "schedules", "networks", "collective_algorithms", "compute_models"):
        for name in plugins.BUILT_IN[group]:
            yield from filter(takes_text, declared(plugins.load(group, name)))
