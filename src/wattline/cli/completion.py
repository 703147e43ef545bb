"""`wattline completion`: print a script that completes commands and options in a shell.

    eval "$(wattline completion bash)"                                 # in ~/.bashrc
    wattline completion zsh > ~/.zfunc/_wattline                       # a folder of fpath
    wattline completion fish > ~/.config/fish/completions/wattline.fish

The script has all names in it, so that completing starts no process.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

from wattline.cli.command_list import CommandEntry, list_commands


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wattline completion`."""
    parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")


def run(args: argparse.Namespace) -> int:
    """Print the script of a shell."""
    build = {"bash": build_bash, "zsh": build_zsh, "fish": build_fish}[args.shell]
    print(build(list(list_commands())), end="")
    return 0


def build_bash(commands: Sequence[CommandEntry]) -> str:
    """Return the script for bash 4 or later."""
    return f"""# Completion of wattline for bash, written by wattline completion bash.
_wattline() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" words="" word
  local -i at
  for ((at = 1; at < COMP_CWORD; at++)); do
    word="${{COMP_WORDS[at]}}"
    [[ $word == -- ]] && {{ COMPREPLY=(); compopt -o default; return; }}
    [[ $word == -* || -z $word ]] || words+="${{words:+ }}$word"
  done
  case "$words" in
{_case_lines(commands, "    ")}
  esac
  if [[ -z $COMPREPLY ]]; then compopt -o default; fi
}}
complete -F _wattline wattline
"""


def _case_lines(commands: Sequence[CommandEntry], indent: str) -> str:
    """Return the cases of all commands, actions before their command, and of the command itself."""
    lines = []
    for entry in sorted(commands, key=lambda entry: (-len(entry.words), entry.words)):
        pattern = " ".join(entry.words)
        actions = _list_actions(commands, entry)
        names = shlex.quote(" ".join([*actions, *_list_choices(entry), *_list_flags(entry)]))
        reply = f'COMPREPLY=($(compgen -W {names} -- "$current"))'
        for option in entry.options:
            if option.choices:
                flags = " || ".join(f"$previous == {flag}" for flag in option.flags)
                choices = shlex.quote(" ".join(option.choices))
                values = f'COMPREPLY=($(compgen -W {choices} -- "$current"))'
                reply = f"if [[ {flags} ]]; then {values}; else {reply}; fi"
        lines.append(f'{indent}"{pattern}"|"{pattern} "*) {reply} ;;')
    top = " ".join([entry.words[0] for entry in commands if len(entry.words) == 1] + ["--help", "--version"])
    lines.append(f'{indent}"") COMPREPLY=($(compgen -W {shlex.quote(top)} -- "$current")) ;;')
    return "\n".join(lines)


def _list_actions(commands: Sequence[CommandEntry], entry: CommandEntry) -> list[str]:
    return [other.words[1] for other in commands if len(other.words) == 2 and other.words[:1] == entry.words]


def _list_choices(entry: CommandEntry) -> list[str]:
    return [choice for argument in entry.arguments for choice in argument.choices]


def _list_flags(entry: CommandEntry) -> list[str]:
    return [flag for option in entry.options for flag in option.flags if flag.startswith("--")]


def build_zsh(commands: Sequence[CommandEntry]) -> str:
    """Return the script for zsh, to be saved as `_wattline` in a folder of fpath."""
    tops = [entry for entry in commands if len(entry.words) == 1]
    listed = "\n".join(f"    {shlex.quote(f'{entry.words[0]}:{entry.summary}')}" for entry in tops)
    cases = []
    for entry in tops:
        actions = [other for other in commands if other.words[:1] == entry.words]
        lines = "\n".join(f"        {_zsh_option(text)}" for text in _describe_options(actions))
        names = [*_list_actions(commands, entry), *_list_choices(entry)]
        words = f"\n      compadd -- {' '.join(map(shlex.quote, names))}" if names else ""
        cases.append(
            f"    {entry.words[0]})\n      options=(\n{lines}\n      ){words}\n"
            "      _describe -o option options; _files ;;"
        )
    body = "\n".join(cases)
    return f"""#compdef wattline
# Completion of wattline for zsh, written by wattline completion zsh.
_wattline() {{
  local -a commands options
  commands=(
{listed}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  case "$words[2]" in
{body}
  esac
}}
_wattline "$@"
"""


def _describe_options(entries: Sequence[CommandEntry]) -> list[tuple[str, str]]:
    seen: dict[str, str] = {}
    for entry in entries:
        for option in entry.options:
            seen |= {flag: option.help for flag in option.flags if flag not in seen}
    return list(seen.items())


def _zsh_option(option: tuple[str, str]) -> str:
    flag, text = option
    return shlex.quote(f"{flag}:{text}".replace("\n", " "))


def build_fish(commands: Sequence[CommandEntry]) -> str:
    """Return the script for fish."""
    lines = ["# Completion of wattline for fish, written by wattline completion fish."]
    for entry in commands:
        if len(entry.words) == 1:
            start = "complete -c wattline -n __fish_use_subcommand"
            lines.append(f"{start} -a {entry.words[0]} -d {_quote_fish(entry.summary)}")
    for entry in commands:
        seen = " and ".join(f"__fish_seen_subcommand_from {word}" for word in entry.words)
        start = f"complete -c wattline -n {_quote_fish(seen.replace(' and ', '; and '))}"
        names = [*_list_actions(commands, entry), *_list_choices(entry)]
        if names:
            lines.append(f"{start} -a {_quote_fish(' '.join(names))}")
        for option in entry.options:
            flags = " ".join(f"-l {f[2:]}" if f.startswith("--") else f"-s {f[1:]}" for f in option.flags)
            value = " -r" if option.value else ""
            choices = f" -a {_quote_fish(' '.join(option.choices))}" if option.choices else ""
            lines.append(f"{start} {flags}{value}{choices} -d {_quote_fish(option.help)}")
    return "\n".join(lines) + "\n"


def _quote_fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", " ") + "'"
