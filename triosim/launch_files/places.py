"""The places of a run's options in a launch file, which errors about them name; some values are found wrong late."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from triosim.errors import OptionError
from triosim.launch_files.job import OPTION, SIZES


@dataclass(frozen=True, slots=True)
class Places:
    """Where a launch file gives each setting of a job: the places of its keys, ``job.toml:12: training.seq_len``."""

    of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def without(self, names: Iterable[str]) -> Places:
        """Return those of the settings that no other option replaces."""
        replaced = {*names}
        replaced |= (
            {*SIZES} if "parallel" in replaced else {"micro_batches", *_BATCH} if replaced & {*_BATCH} else set()
        )
        return Places({name: places for name, places in self.of.items() if name not in replaced})

    @contextmanager
    def named(self) -> Iterator[None]:
        """Let an error about an option that the launch file gives name file, line and key."""
        try:
            yield
        except OptionError as error:
            found = self.explained(error)
            raise found from (None if found is error else error)

    def explained(self, error: OptionError) -> OptionError:
        """Return an error at the places in the launch file; as it is where that does not give the option."""
        places = list(dict.fromkeys(place for name in self._settings(error) for place in self.of[name]))
        return OptionError(error.what, where=" and ".join(places), fix=error.fix) if places else error

    def _settings(self, error: OptionError) -> list[str]:
        """Return the settings that an error is about: of ``parallel`` the sizes that it mentions, or all."""
        about = (error.where or "").lstrip("-").replace("-", "_").removeprefix("option ")
        if re.match(r"parallel\b", about):
            sizes = [name for name in SIZES if name in self.of]
            return [name for name in sizes if re.search(rf"\b{name}\b", error.what)] or sizes
        names = {name.removeprefix(OPTION): name for name in self.of}
        found = [name for name in names if about.replace(" ", "_") == name or re.match(rf"{name}\b", about)]
        return [names[max(found, key=len)]] if found else []


#: Options that say how many samples a step has.
_BATCH = ("batch_size", "global_batch_size")
