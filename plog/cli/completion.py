"""`plog completion`: the scripts by which bash, zsh and fish complete plog's command lines.

Each script passes the line up to the cursor to plog, in COMP_LINE. plog answers with a line for
each word that fits: its kind (plain, file or dir), the word and its meaning, divided by tabs.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from functools import partial

import click
from click.shell_completion import CompletionItem, ShellComplete, add_completion_class

COMPLETE_VARIABLE = "_PLOG_COMPLETE"
MAX_HELP = 80
"""Characters of a command's description beside its name."""
BASH_BREAKS = "=:"
"""bash replaces only the part of a word behind the last of these."""

BASH = r"""# Completion of plog's command lines for bash.
_plog_completion() {
    local kind word help
    COMPREPLY=()
    while IFS=$'\t' read -r kind word help; do
        case $kind in
        plain) COMPREPLY+=("$word") ;;
        file) compopt -o default ;;
        dir) compopt -o dirnames ;;
        esac
    done < <(COMP_LINE=${COMP_LINE:0:COMP_POINT} COMP_BREAKS=$COMP_WORDBREAKS \
        _PLOG_COMPLETE=bash_complete "$1" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace
    fi
}
complete -o nosort -F _plog_completion plog
"""

ZSH = r"""#compdef plog
# Completion of plog's command lines for zsh.
_plog() {
    local kind word help
    local -a described plain
    while IFS=$'\t' read -r kind word help; do
        case $kind in
        plain)
            if [[ -n $help ]]; then
                described+=("${word//:/\\:}:$help")
            elif [[ $word == *= ]]; then
                compadd -S '' -- "$word"
            else
                plain+=("$word")
            fi
            ;;
        file) _files ;;
        dir) _files -/ ;;
        esac
    done < <(COMP_LINE="${words[1,CURRENT-1]} $PREFIX" _PLOG_COMPLETE=zsh_complete \
        "${words[1]}" 2>/dev/null)
    (( $#described )) && _describe -V plog described
    (( $#plain )) && compadd -a plain
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _plog "$@"
else
    compdef _plog plog
fi
"""

FISH = r"""# Completion of plog's command lines for fish.
function __plog_complete
    set -l line (commandline --current-process --cut-at-cursor | string join ' ')
    for reply in (env COMP_LINE="$line" _PLOG_COMPLETE=fish_complete plog 2>/dev/null)
        set -l parts (string split --max 2 \t -- $reply)
        switch $parts[1]
            case file
                __fish_complete_path (commandline --current-token)
            case dir
                __fish_complete_directories (commandline --current-token)
            case '*'
                string join \t -- $parts[2..]
        end
    end
end
complete --command plog --no-files --arguments '(__plog_complete)'
"""


class Completion(ShellComplete):
    """Completes a command line for a shell whose script passes it in COMP_LINE."""

    script = ""

    def source(self) -> str:
        """Return the shell's script."""
        return self.script

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor, and the beginning of the word at the cursor."""
        words = line_words(os.environ.get("COMP_LINE", ""))
        while len(words) > 1 and words[0].partition("=")[0].isidentifier() and "=" in words[0]:
            words.pop(0)  # NAME=value before the command
        return words[1:-1], words[-1]

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return the words that fit, each of them whole."""
        command = self._command(args)
        for parameter in command.params:
            default = parameter.shell_complete
            setattr(parameter, "shell_complete", partial(_complete, parameter, default))  # noqa: B010
        name, equals, _ = incomplete.partition("=")
        items = super().get_completions(list(args), incomplete)
        for item in items:
            # click cuts the help of a command.
            if isinstance(command, click.Group) and item.value in command.commands:
                item.help = command.commands[item.value].get_short_help_str(MAX_HELP)
        if name.startswith("--") and equals:
            for item in items:
                item.value = f"{name}={item.value}"
        return items

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Return the line for a word that fits."""
        return f"{item.type}\t{item.value}\t{' '.join((item.help or '').split())}"

    def _command(self, args: list[str]) -> click.Command:
        """Return the command that the words before the cursor name."""
        command: click.Command = self.cli
        for word in args:
            if not isinstance(command, click.Group):
                break
            command = command.get_command(click.Context(command), word) or command
        return command


class BashCompletion(Completion):
    """Completion for bash, which divides words at `=` and `:`."""

    name = "bash"
    script = BASH

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return the words that fit, without the part that bash does not replace."""
        breaks = set(BASH_BREAKS) & set(os.environ.get("COMP_BREAKS", BASH_BREAKS))
        kept = max((incomplete.rfind(one) + 1 for one in breaks), default=0)
        items = super().get_completions(args, incomplete)
        for item in items:
            item.value = item.value[kept:]
        return items


class ZshCompletion(Completion):
    """Completion for zsh."""

    name = "zsh"
    script = ZSH


class FishCompletion(Completion):
    """Completion for fish."""

    name = "fish"
    script = FISH


SHELLS = {one.name: one for one in (BashCompletion, ZshCompletion, FishCompletion)}


def register() -> None:
    """Make plog's completion that of `click`, which calls it when a shell asks."""
    for shell in SHELLS.values():
        add_completion_class(shell)


def line_words(line: str) -> list[str]:
    """Return the words of a line of a shell; the last one may be empty or unfinished."""
    return [*_words(line)] or [""]


def _words(line: str) -> Iterator[str]:
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        yield from lexer
    except ValueError:  # an open quotation mark, or a backslash at the end
        yield lexer.token.lstrip("\"'")
        return
    if not line or line[-1].isspace():
        yield ""


def _complete(
    parameter: click.Parameter,
    default: object,
    context: click.Context,
    incomplete: str,
) -> list[CompletionItem[str]]:
    from plog.cli.cluster_names import names_for

    names = None if parameter.name is None else names_for(context, parameter.name, incomplete)
    if names is None:
        assert callable(default)
        items: list[CompletionItem[str]] = default(context, incomplete)
        return items
    return [CompletionItem(name) for name in names]


@click.command()
@click.argument("shell", type=click.Choice(list(SHELLS)))
def command(shell: str) -> None:
    """Print the script that completes plog's command lines in a shell.

    It completes commands, options and their choices. Topics, groups, brokers, loggers and
    transactional ids come from the broker that the line names, and setting keys from plog. The
    package for Debian installs the scripts. Elsewhere:

    \b
      plog completion bash > ~/.local/share/bash-completion/completions/plog
      plog completion zsh > ~/.zsh/completions/_plog      (a directory of $fpath)
      plog completion fish > ~/.config/fish/completions/plog.fish
    """
    click.echo(SHELLS[shell].script, nl=False)
