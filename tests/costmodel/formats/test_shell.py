"""Shell scripts are data: what is resolved, what stays, and what is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.formats.shell import arguments, read_script
from profiles.errors import InvalidFile


def words(text: str) -> list[str]:
    """Those of the last command."""
    return read_script(text, "run.sh").commands[-1]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("run --a 1 \\\n  --b 2", ["run", "--a", "1", "--b", "2"]),
        ("A=8\nB=4\nrun --n $((A * B))", ["run", "--n", "32"]),
        ("A=8\nrun --n $(($A*2 + ${A} / 4 - 1))", ["run", "--n", "17"]),
        ("A='--x 1'\nA+=' --y'\nrun $A", ["run", "--x", "1", "--y"]),
        ("export A=${A:-5}\nrun $A ${B-6} ${C:=7}", ["run", "5", "6", "7"]),
        ("A=1 B=2 run $A", ["run", "1"]),
        ("run --a # --b\n", ["run", "--a"]),
        ("run --a 1 --b > x.log 2>&1 &", ["run", "--a", "1", "--b"]),
        ("cd /x && run --a 2>err.log 1>> $LOG", ["run", "--a"]),
        ("C='run --a 1'\nsrun -l sh -c \"$C\"", None),
        ("--a 1\n--b 2\n", ["--a", "1", "--b", "2"]),
    ],
)
def test_variables_and_sums(text: str, found: list[str] | None) -> None:
    assert words(text) == (found or ["srun", "-l", "sh", "-c", "run", "--a", "1"])


def test_lists_fall_into_words() -> None:
    text = 'A=(\n  --x 1  # one\n  # none\n  --y 2\n)\nrun "${A[@]}"'
    assert words(text) == ["run", "--x", "1", "--y", "2"]


def test_a_quoted_parenthesis_does_not_close_a_list() -> None:
    text = "A=(\n  --f '([0]*3+[1]*5)'\n  --g 1\n)\nrun ${A[@]}"
    assert words(text) == ["run", "--f", "([0]*3+[1]*5)", "--g", "1"]


def test_what_is_not_known_stays_as_it_is() -> None:
    assert words("run $NOBODY $1 `date` ${X:?no}")[1:3] == ["$NOBODY", "$1"]
    assert words("run $((1 << 2)) $((A * 2)) $((2 ** 99))")[1:2] != ["4"]


def test_a_branch_leaves_its_variables_open() -> None:
    text = "N=1\nif [ $X = 1 ]; then\nN=2\nfi\nrun --n $N"
    assert words(text)[-1] == "$N"
    assert words("N=1\nif true; then\nM=2\nfi\nrun $N") == ["run", "1"]
    short = "N=1\nif [ -z $X ]; then N=2; fi\nM=3\nrun $N $M"
    assert words(short) == ["run", "$N", "3"]
    nested = "for i in 1 2; do\nif x; then\nA=1\nfi\ndone\nB=2\nrun $A $B"
    assert words(nested) == ["run", "$A", "2"]


def test_what_is_piped_is_a_command_of_its_own() -> None:
    script = read_script("run --a 1 2>&1 | tee log.txt; next x", "x")
    assert script.commands == [["run", "--a", "1"], ["tee", "log.txt"], ["next", "x"]]


def test_here_documents_are_kept_by_file() -> None:
    text = 'S=3\ncat <<EOT > ds.json\n{"stage": $S}\nEOT\nrun'
    script = read_script(text, "run.sh")
    assert script.documents == {"ds.json": '{"stage": 3}'}
    assert script.commands[-1] == ["run"]


def test_batch_headers() -> None:
    text = "#SBATCH --nodes=4\n#SBATCH --gpus-per-node 8\nsrun x"
    assert read_script(text, "x").slurm == {"nodes": "4", "gpus-per-node": "8"}


def test_arguments_by_name() -> None:
    before, found = arguments(["run", "--a", "--b=1", "--c", "2", "3", "--a", "-1"])
    assert before == ["run"]
    assert found == {"a": "-1", "b": "1", "c": ("2", "3")}


@pytest.mark.parametrize(
    "text",
    [
        "A='open\nrun",
        "A=(1 2\nrun",
        "A=x\n" + 'A="$A$A$A$A$A$A$A$A$A$A"\n' * 40 + "run $A",
        f"A={'x' * 30_000}\n" + 'run "$A"\n' * 1000,
        "A='\n" + "x" * 40_000 + "\n'",
    ],
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidFile):
        read_script(text, "run.sh")


def test_nothing_is_executed(tmp_path: object) -> None:
    found = words('A=$(touch /nowhere)\nrun --x "$A" `touch /nowhere` $((__import__))')
    assert "touch" in " ".join(found)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(alphabet="A=$(){}[]@\"'\\\n #-*+1x<|;&`", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(InvalidFile):
        read_script(text, "run.sh")
