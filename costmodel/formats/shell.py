"""Shell scripts as data: which command a script runs, with its variables resolved.

Nothing is executed. Understood are `NAME=value`, `NAME=(…)`, `NAME+=…`, `$NAME`,
`${NAME}`, `${NAME:-default}`, `${NAME[@]}`, `$((A * B))`, continued lines, quotes and
here-documents. What depends on more than that (`$1`, `$(date)`, a branch) stays as it
is written, and is refused where its value is needed.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from profiles.errors import InvalidFile

MOST_WORDS: Final = 20_000
LONGEST_VALUE: Final = 65_536  # characters
MOST_EXPANDED: Final = 4 * 2**20  # in all, so that values of values end
LONGEST_STATEMENT: Final = 200  # lines
LARGEST_STATEMENT: Final = 32_768  # characters
MOST_DIGITS: Final = 15
_ASSIGNED: Final = re.compile(
    r"(?:(?:export|local|readonly|declare|typeset)\s+(?:-\w+\s+)*)?"
    r"(?P<name>[A-Za-z_]\w*)(?P<more>\+?)=(?P<value>.*)",
    re.S,
)
_ARRAY: Final = re.compile(r"(?:\w+\s+(?:-\w+\s+)*)?[A-Za-z_]\w*\+?=\(")
_ARITHMETIC: Final = re.compile(r"\$\(\(([^`\n]{1,200}?)\)\)")
_NAMED: Final = re.compile(
    r"\$(?:(?P<plain>[A-Za-z_]\w*)|\{(?P<braced>[A-Za-z_]\w*)"
    r"(?:\[[@*]\])?(?::?[-=](?P<default>[^{}]*))?\})"
)
_HEREDOC: Final = re.compile(r"(?<!<)<<-?\s*['\"]?([A-Za-z_]\w*)['\"]?")
_SUM: Final = re.compile(r"[0-9\s()+*/%-]+")
_NAME: Final = re.compile(r"\$?\{?([A-Za-z_]\w*)\}?")
_INTO: Final = re.compile(r">{1,2}\s*['\"]?([^\s'\"<>]+)['\"]?")
_OPENS: Final = ("if", "for", "while", "until", "case")
_CLOSES: Final = ("fi", "done", "esac")
_BLOCK: Final = re.compile(
    rf"(?:^|;|&&|\bthen\b|\bdo\b|\belse\b)\s*({'|'.join((*_OPENS, *_CLOSES))})\b"
)
_BETWEEN: Final = re.compile(r"(?:then|else|elif|do)\b")
_SET: Final = re.compile(r"(?:^|[;\s])([A-Za-z_]\w*)\+?=")
_ENDS: Final = ("|", "||", "&&", ";", "&")  # of a command
_REDIRECTS: Final = re.compile(r"(?:\d*|&)[<>]+&?(.*)")
_SLURM: Final = re.compile(r"#SBATCH\s+--?([\w-]+)[=\s]\s*(\S+)")
_OPERATIONS: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass(kw_only=True)
class Script:
    """What a script says: its commands, word by word, with what was set before them."""

    what: str
    commands: list[list[str]] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    documents: dict[str, str] = field(default_factory=dict)  # here-documents by file
    slurm: dict[str, str] = field(default_factory=dict)  # `#SBATCH`, or a manifest's
    branched: set[str] = field(default_factory=set)  # set under a condition
    expanded_so_far: int = 0

    def expanded(self, text: str) -> str:
        """*text* with every variable that is known put in its place."""
        for _ in range(8):  # names in values
            before = text
            text = _NAMED.sub(self._value, self.summed(text))
            if len(text) > LONGEST_VALUE:
                raise InvalidFile(f"{self.what}: a variable's value is too long")
            if text == before:
                break
        return text

    def summed(self, text: str) -> str:
        """*text* with the arithmetic that is known done."""
        return _ARITHMETIC.sub(self._sum, text)

    def _sum(self, match: re.Match[str]) -> str:
        def number(name: re.Match[str]) -> str:
            known = self.variables.get(name[1], "")
            plain = known.isdigit() and name[1] not in self.branched
            return known if plain and len(known) <= MOST_DIGITS else name[0]

        return _computed(match[0], _NAME.sub(number, match[1]))

    def split(self, text: str) -> list[str]:
        """Words as a shell has them; raises InvalidFile for quotes left open."""
        try:
            return shlex.split(text, comments=True)
        except ValueError as error:
            raise InvalidFile(f"{self.what}: {error}: {text[:40]!r}") from None

    def _value(self, match: re.Match[str]) -> str:
        name = match["plain"] or match["braced"]
        if name in self.branched:
            return match[0]
        found = self.variables.get(name)
        if found in (None, "") and match["default"] is not None:
            return match["default"]
        if found is None:
            return match[0]
        self.expanded_so_far += len(found)
        if self.expanded_so_far > MOST_EXPANDED:
            raise InvalidFile(f"{self.what}: its variables' values are too long")
        return found


def read_script(text: str, what: str) -> Script:
    """The script *text*; raises InvalidFile for quotes that do not close and for what
    is too long."""
    script, depth = Script(what=what), 0
    for statement in _statements(text, script):
        blocks = _BLOCK.findall(statement)
        depth += sum(1 if word in _OPENS else -1 for word in blocks)
        if blocks:  # what is set on the same line is set under its condition
            script.branched.update(_SET.findall(statement))
            continue
        between = _BETWEEN.match(statement)
        if between:
            statement = statement[between.end() :].strip()
        _follow(script, script.summed(statement), conditional=depth > 0)
    return script


def _statements(text: str, script: Script) -> Iterator[str]:
    """Logical lines: continued ones, open quotes and open lists put together."""
    lines = iter(text.replace("\r\n", "\n").split("\n"))
    for line in lines:
        slurm = _SLURM.match(line.strip())
        if slurm:
            script.slurm[slurm[1]] = slurm[2]
        statement, count = _continued(line, lines), 0
        if not statement.strip() or statement.lstrip().startswith("#"):
            continue
        while _open(statement):
            try:
                following = _continued(next(lines), lines)
            except StopIteration:
                raise InvalidFile(
                    f"{script.what}: a quote or a list is not closed: "
                    f"{statement.strip()[:40]!r}"
                ) from None
            if not following.lstrip().startswith("#"):
                statement += f"\n{following}"
            count += 1
            if count > LONGEST_STATEMENT or len(statement) > LARGEST_STATEMENT:
                raise InvalidFile(
                    f"{script.what}: one statement is longer than {LONGEST_STATEMENT} "
                    f"lines or {LARGEST_STATEMENT:,} characters"
                )
        document = _HEREDOC.search(statement)
        if document:
            body = "\n".join(_until(lines, document[1]))
            into = _INTO.search(statement)
            if into:
                script.documents[into[1]] = script.expanded(body)
            continue
        yield statement.strip()


def _continued(line: str, lines: Iterator[str]) -> str:
    parts = [line]
    while parts[-1].rstrip().endswith("\\"):
        parts[-1] = parts[-1].rstrip()[:-1]
        following = next(lines, None)
        if following is None:
            break
        if not following.lstrip().startswith("#"):
            parts.append(following)
        elif following.rstrip().endswith("\\"):
            parts.append("\\")  # a comment among continued lines
    return " ".join(parts)


def _until(lines: Iterator[str], mark: str) -> Iterator[str]:
    for line in lines:
        if line.strip() == mark:
            return
        yield line


def _open(statement: str) -> bool:
    """Whether a quote, or the list of an array, is still open."""
    lexer = shlex.shlex(statement, posix=True, punctuation_chars="()")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return True
    if not _ARRAY.match(statement):
        return False
    parentheses = [word for word in words if set(word) <= set("()")]
    return sum(word.count("(") - word.count(")") for word in parentheses) > 0


def _follow(script: Script, statement: str, *, conditional: bool) -> None:
    """Remember what *statement* sets, or the command that it is."""
    assigned = _ASSIGNED.fullmatch(statement)
    if assigned is None:
        _add(script, statement)
        return
    value, rest = assigned["value"], ""
    if value.startswith("("):
        value = " ".join(script.split(value.strip()[1:].removesuffix(")")))
    else:
        words = script.split(value)
        value = words[0] if words else ""
        rest = " ".join(shlex.quote(word) for word in words[1:] if word != ";")
    name = assigned["name"]
    if conditional and script.variables.get(name) != value:
        script.branched.add(name)
    value = script.expanded(value)
    before = script.variables.get(name, "") if assigned["more"] else ""
    joined = f"{before} {value}" if before else value
    if len(joined) > LONGEST_VALUE:
        raise InvalidFile(f"{script.what}: the value of {name} is too long")
    script.variables[name] = joined
    if rest:
        _follow(script, rest, conditional=conditional)


def _add(script: Script, statement: str) -> None:
    words = [
        part
        for word in script.split(statement)
        for part in _split(script.expanded(word))
    ]
    if len(words) > MOST_WORDS or len(script.commands) > MOST_WORDS:
        raise InvalidFile(f"{script.what}: more than {MOST_WORDS:,} words")
    for command in _commands(words):
        if command[0].startswith("-") and script.commands:
            script.commands[-1] += command  # a plain list of arguments, line by line
        else:
            script.commands.append(command)


def _commands(words: list[str]) -> Iterator[list[str]]:
    """What pipes and `&&` part, without where its output goes."""
    found: list[str] = []
    to_file = False
    for word in [*words, ";"]:
        goes = _REDIRECTS.fullmatch(word)
        if goes is not None:
            to_file = not goes[1]
        elif to_file:
            to_file = False
        elif word not in _ENDS:
            found.append(word.removesuffix(";"))
            if not word.endswith(";"):
                continue
        if word.endswith(_ENDS) and found:
            yield found
            found = []


def _split(word: str) -> list[str]:
    """What an unquoted variable holds falls into words; so does what was quoted."""
    if not any(char.isspace() for char in word):
        return [word] if word else []
    try:
        return shlex.split(word)
    except ValueError:
        return word.split()


def _computed(whole: str, inner: str) -> str:
    """The value of *inner*, or the *whole* as it is where it is no plain sum."""
    if not _SUM.fullmatch(inner):
        return whole
    try:
        return str(_integer(ast.parse(inner.strip(), mode="eval").body))
    except (SyntaxError, ValueError, RecursionError, MemoryError, ZeroDivisionError):
        return whole


def _integer(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_integer(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        found = _OPERATIONS[type(node.op)](_integer(node.left), _integer(node.right))
        if abs(found) < 10**18:
            return found
    raise ValueError("not integer arithmetic")


def arguments(words: list[str]) -> tuple[list[str], dict[str, object]]:
    """Words before the first `--name`, and what each name is given: True for nothing,
    text for one value, several as a tuple; the last one counts."""
    found: dict[str, object] = {}
    begin = next((i for i, word in enumerate(words) if word.startswith("--")), None)
    if begin is None:
        return words, found
    name, values = "", list[str]()
    for word in [*words[begin:], "--"]:
        if not word.startswith("--"):
            values.append(word)
            continue
        if name:
            found[name] = _few(values)
        name, equals, value = word[2:].partition("=")
        values = [value] if equals else []
    return words[:begin], found


def _few(values: list[str]) -> object:
    if not values:
        return True
    return values[0] if len(values) == 1 else tuple(values)
