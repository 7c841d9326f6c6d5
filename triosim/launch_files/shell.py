"""Reads the words of a launch script without running it: assignments, arrays and variables are followed, nothing else is.

Of ``if`` the branch is taken that its comparison of known texts and numbers chooses. What only a shell knows as it runs (other
conditions, loops) is passed over where it sets no variable and starts no job, and else refused. A variable that the script does
not set stays as it is written, so that an error about a value shows its name.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath

from triosim.errors import OptionError
from triosim.input_files.limits import YAML_BYTES

#: What begins a part that a shell may run or not, or several times, and what ends it.
_BEGINS = {"if": "fi", "for": "done", "while": "done", "until": "done", "case": "esac"}
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?=)(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\(\(([^()]*)\)\)|\$\{(\w+)(?:\[[@*]\])?(?::?-([^}]*))?\}|\$(\w+)")
_ARITHMETIC = re.compile(r"[\w\s*+/%-]+")
_SPACE, _ENDS = " \t\r", "\n;&|"
#: The most words of a command, and characters of one.
_MOST, _LONGEST = 20_000, 100_000


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command, and the line on which it stands."""

    text: str
    line: int


_Variables = dict[str, list[Word]]


@dataclass(slots=True)
class _Piece:
    """A word as it is written: its parts, each with whether variables in it are replaced, and whether they then split words."""

    line: int
    parts: list[tuple[str, bool, bool]] = field(default_factory=list)

    @property
    def plain(self) -> str:
        return "".join(text for text, _, _ in self.parts)


@dataclass(slots=True)
class _Part:
    """A part of a script that is run or not: ``runs`` is None where only a shell knows.

    ``tests`` are the commands of a condition that is being read; ``line`` is where the part begins, ``taken`` whether a branch
    of it was.
    """

    begins: str
    line: int
    runs: bool | None = None
    taken: bool | None = False
    tests: list[tuple[list[Word], str]] | None = None


def commands(text: str, path: str, refuse: Callable[[OptionError], None]) -> Iterator[list[Word]]:
    """Yield the commands of a script with variables replaced; ``refuse`` is given an error about what cannot be followed."""
    YAML_BYTES.check(len(text), path, OptionError)
    variables: _Variables = {}
    parts: list[_Part] = []
    for pieces, end in _lexed(text, path):
        pieces = _of_parts(pieces, end, parts, variables)
        if not pieces or any(part.runs is False for part in parts):
            continue
        unknown = next((part for part in parts if part.runs is None), None)
        if unknown is None:
            words = [word for piece in _assigned(pieces, variables) for word in _expanded(piece, variables)]
            if len(words) > _MOST:
                raise OptionError(f"a command of {len(words)} words", where=f"{path}:{pieces[0].line}")
            if words:
                yield words
        elif _ASSIGNMENT.match(pieces[0].plain) or any(PurePath(one.plain).name in _STARTS for one in pieces):
            fix = "write the script as it runs, or give --ignore-unknown"
            refuse(OptionError(f"'{unknown.begins}' cannot be followed", where=f"{path}:{unknown.line}", fix=fix))


def _of_parts(pieces: list[_Piece], end: str, parts: list[_Part], variables: _Variables) -> list[_Piece]:
    """Return a command without the words that begin, divide and end parts; these change which ``parts`` it is in."""
    while pieces:
        first = pieces[0].plain
        part = parts[-1] if parts else None
        if first in _BEGINS:
            tests: list[tuple[list[Word], str]] | None = [] if first == "if" else None
            parts.append(_Part(first, pieces[0].line, tests=tests))
        elif part is not None and first == "elif":
            part.tests, part.runs = [], None
        elif part is not None and first == "then":
            held = _held(part.tests or [])
            part.runs, part.tests = (False if part.taken else held), None
            part.taken = True if part.taken or held else None if held is None or part.taken is None else False
        elif part is not None and first == "else":
            part.runs = None if part.taken is None else not part.taken
        elif part is not None and first == _BEGINS[part.begins]:
            parts.pop()
        elif part is not None and part.tests is not None:
            part.tests.append(([word for piece in pieces for word in _expanded(piece, variables)], end))
            return []
        elif first != "do":
            return pieces
        pieces = pieces[1:]
    return []


def _held(tests: list[tuple[list[Word], str]]) -> bool | None:
    """Return whether a condition holds, several tests from left to right; None where only a shell knows."""
    found, before = True, "&&"
    for words, end in tests:
        one = _test([word.text for word in words])
        if one is None:
            return None
        found = (found or one) if before == "||" else (found and one)
        before = end
    return found


def _test(words: list[str]) -> bool | None:
    """Return whether ``[ A = B ]`` holds; None where it compares something else than known texts or numbers."""
    negated = words[:1] == ["!"]
    words = words[negated:]
    if words[:1] not in (["["], ["[["]) or words[-1:] not in (["]"], ["]]"]) or any("$" in word for word in words):
        return None
    inside = words[1:-1]
    held = {"-n": bool, "-z": lambda text: not text}
    if len(inside) == 2 and inside[0] in held:
        found = bool(held[inside[0]](inside[1]))
    elif len(inside) == 3 and inside[1] in ("=", "==", "!="):
        found = (inside[0] == inside[2]) == (inside[1] != "!=")
    elif len(inside) == 3 and inside[1] in _COMPARED and all(re.fullmatch(r"-?\d{1,15}", inside[at]) for at in (0, 2)):
        found = _COMPARED[inside[1]](int(inside[0]), int(inside[2]))
    else:
        return None
    return found != negated


_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt, "-ge": operator.ge, "-lt": operator.lt, "-le": operator.le,
}  # fmt: skip
#: The programs that start a job.
_STARTS = frozenset({"torchrun", "accelerate", "deepspeed", "python", "python3", "srun", "mpirun"})


def _assigned(pieces: list[_Piece], variables: _Variables) -> list[_Piece]:
    """Set the variables that a command begins with; return what is left of it."""
    index = 1 if pieces[0].plain in ("export", "local", "readonly", "declare") else 0
    while index < len(pieces) and (found := _ASSIGNMENT.fullmatch(pieces[index].plain)):
        piece, name, before = pieces[index], found[1], variables.get(found[1], [])
        values: list[Word]
        if found[3] == "(":
            end = next((at for at in range(index, len(pieces)) if pieces[at].plain == ")"), len(pieces))
            values = [word for one in pieces[index + 1 : end] for word in _expanded(one, variables)]
            values = [*before, *values] if found[2] == "+=" else values
            index = end
        else:
            text = "".join(_replaced(part, variables) if live else part for part, live, _ in _after(piece, found))
            values = [Word((_text(before) if found[2] == "+=" else "") + text, piece.line)]
        variables[name] = [Word(value.text[:_LONGEST], value.line) for value in values[:_MOST]]
        index += 1
    return pieces[index:]


def _after(piece: _Piece, found: re.Match[str]) -> list[tuple[str, bool, bool]]:
    """Return the parts of an assignment after its sign."""
    left, parts = found.start(3), []
    for text, live, split in piece.parts:
        parts.append((text[left:], live, split))
        left = max(left - len(text), 0)
    return parts


def _text(values: list[Word]) -> str:
    return " ".join(value.text for value in values)


def _expanded(piece: _Piece, variables: _Variables) -> Iterator[Word]:
    """Yield the words that a word becomes; those of an array keep their own lines."""
    whole = _VARIABLE.fullmatch(piece.plain)
    splits = any(split and "$" in part for part, _, split in piece.parts)
    if whole and piece.parts[0][1] and (whole[2] or whole[4]) in variables:
        found = variables[whole[2] or whole[4]]
    else:
        text = "".join(_replaced(part, variables) if live else part for part, live, _ in piece.parts)
        found = [Word(text, piece.line)]
    for word in found:
        yield from (Word(part, word.line) for part in (word.text.split() if splits else [word.text]))


def _replaced(text: str, variables: _Variables) -> str:
    """Return a text with its variables replaced; what is not set stays as it is written."""

    def value(found: re.Match[str]) -> str:
        if found[1] is not None:
            return _computed(found[1], variables) or found[0]
        name = found[2] or found[4]
        if name in variables:
            return _text(variables[name])[:_LONGEST]
        return found[0] if found[3] is None else _replaced(found[3].strip("\"'"), variables)

    return _VARIABLE.sub(value, text)[:_LONGEST] if "$" in text else text


def _computed(expression: str, variables: _Variables) -> str | None:
    """Return the value of products and sums of whole numbers from left to right; None for anything else."""
    plain = re.sub(
        r"\$?\{?([A-Za-z_]\w*)\}?", lambda name: _text(variables.get(name[1], [Word("?", 0)]))[:20], expression
    )
    terms = re.findall(r"\d{1,12}|[*/+-]", plain)
    if "".join(terms) != re.sub(r"\s", "", plain) or len(terms) % 2 == 0 or len({*terms[1::2]} & {"+", "-"}) > 1:
        return None
    if {*terms[1::2]} & {"+", "-"} and {*terms[1::2]} & {"*", "/"}:
        return None
    try:
        value = int(terms[0])
        for sign, number in zip(terms[1::2], map(int, terms[2::2]), strict=True):
            value = {"*": value * number, "+": value + number, "-": value - number}.get(sign) or value // number
    except (ValueError, ZeroDivisionError):
        return None
    return str(value)


def _lexed(text: str, path: str) -> Iterator[tuple[list[_Piece], str]]:
    """Yield the commands of a script, each as its words, with what ends it; an array is a part of its command."""
    lexer = _Lexer(text, path)
    command: list[_Piece] = []
    while (piece := lexer.next(bool(command) and lexer.in_array)) is not None:
        if piece.parts:
            command.append(piece)
        elif command:
            yield command, lexer.end
            command = []
    if command:
        yield command, "\n"


class _Lexer:
    """Divides a script into words, at its own position; a word without parts is the end of a command."""

    def __init__(self, text: str, path: str) -> None:
        self.text, self.path = text, path
        self.at, self.line, self.in_array, self.end = 0, 1, False, ""

    def next(self, in_array: bool) -> _Piece | None:
        """Return the next word, or the end of a command; None at the end of the script."""
        self._skip(in_array)
        if self.at >= len(self.text):
            return None
        character = self.text[self.at]
        if character in _ENDS and not in_array:
            self.end = self._step()
            if self.end in "&|" and self.text[self.at : self.at + 1] == self.end:
                self.end += self._step()
            return _Piece(self.line)
        if character in "()":
            self._step()
            self.in_array = False
            return _Piece(self.line, [(character, False, False)])
        return self._word()

    def _step(self) -> str:
        character = self.text[self.at]
        self.at += 1
        self.line += character == "\n"
        return character

    def _skip(self, in_array: bool) -> None:
        """Pass over blanks, comments, and the ends of lines that go on."""
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif character in _SPACE or (in_array and character in _ENDS):
                self._step()
            elif self.text.startswith(("\\\n", "\\\r\n"), self.at):
                while self._step() != "\n":
                    pass
            else:
                return

    def _word(self) -> _Piece:
        piece = _Piece(self.line)
        while self.at < len(self.text):
            character = self.text[self.at]
            if self.text.startswith("$((", self.at):
                piece.parts.append((self._until("))"), True, True))
            elif self.text.startswith("${", self.at):
                piece.parts.append((self._until("}"), True, True))
            elif self.text.startswith("$(", self.at):
                piece.parts.append((self._bracketed(), False, False))
            elif character in _SPACE + _ENDS + ")":
                break
            elif character == "(":
                if _ASSIGNMENT.fullmatch(piece.plain) and piece.plain.endswith("="):
                    self._step()
                    self.in_array = True
                    piece.parts.append(("(", False, False))
                break
            elif character in "'\"":
                piece.parts.append((self._quoted(), character == '"', False))
            elif character == "\\" and self.at + 1 < len(self.text):
                self._step()
                if (escaped := self._step()) != "\n":
                    piece.parts.append((escaped, False, False))
            else:
                piece.parts.append((self._step(), True, True))
        return _Piece(piece.line, list(_joined(piece.parts)) or [("", False, False)])

    def _until(self, end: str) -> str:
        place = self.text.find(end, self.at)
        place = len(self.text) if place < 0 else place + len(end)
        return "".join(self._step() for _ in range(place - self.at))

    def _bracketed(self) -> str:
        """Return the text of ``$(...)`` as it is written."""
        found, depth = [], 0
        while self.at < len(self.text):
            character = self._step()
            found.append(character)
            depth += (character == "(") - (character == ")")
            if character == ")" and depth == 0:
                break
        return "".join(found)

    def _quoted(self) -> str:
        line, quote = self.line, self._step()
        found = []
        while self.at < len(self.text) and self.text[self.at] != quote:
            if quote == '"' and self.text.startswith("$(", self.at) and not self.text.startswith("$((", self.at):
                found.append(self._bracketed())
            elif quote == '"' and self.text[self.at] == "\\" and self.at + 1 < len(self.text):
                self._step()
                found.append("" if (character := self._step()) == "\n" else character)
            else:
                found.append(self._step())
        if self.at >= len(self.text):
            raise OptionError("a quotation that begins here does not end", where=f"{self.path}:{line}")
        self._step()
        return "".join(found)


def _joined(parts: list[tuple[str, bool, bool]]) -> Iterator[tuple[str, bool, bool]]:
    """Yield parts with neighbours of the same kind as one."""
    text, kind = "", (False, False)
    for part, *rest in parts:
        if (rest[0], rest[1]) == kind and text:
            text += part
        else:
            if text:
                yield (text, *kind)
            text, kind = part, (rest[0], rest[1])
    if text:
        yield (text, *kind)
