//! Forms of flags that scripts use and clap does not know by itself: `--flag=false`, `-o=json`, a list before the command and after it.

use std::ffi::OsString;

use clap::{Arg, ArgAction, ArgMatches, Command};

/// The list that every command has.
const GROUPS: &str = "impersonate_groups";

/// Lets every flag without a value take `=true` and `=false`, in this command and those below it.
pub fn with_boolean_values(command: Command) -> Command {
    command
        .mut_args(|argument| match argument.get_action() {
            ArgAction::SetTrue => argument
                .action(ArgAction::Set)
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .default_value("false")
                .hide_default_value(true)
                .hide_possible_values(true),
            _ => argument,
        })
        .mut_subcommands(with_boolean_values)
}

/// All values of `--as-group` in their order: of a flag that every level of the command line has, clap keeps those of the last level alone. Nothing for a
/// line that is not valid.
pub fn groups(command: Command, words: Vec<OsString>) -> Vec<String> {
    let found = command.get_arguments().find(|argument| argument.get_id() == GROUPS).cloned();
    let Some(argument) = found.map(|argument| argument.global(false)) else { return Vec::new() };
    let command = command
        .mut_arg(GROUPS, |argument| argument.global(false))
        .mut_subcommands(|below| with_own_groups(below, &argument));
    let matches = command.try_get_matches_from(words);
    let mut level: Option<&ArgMatches> = matches.as_ref().ok();
    let mut groups = Vec::new();
    while let Some(matches) = level {
        let own = matches.try_get_many::<String>(GROUPS).ok().flatten();
        groups.extend(own.into_iter().flatten().cloned());
        level = matches.subcommand().map(|(_, below)| below);
    }
    groups
}

/// The line with the kind of `create`, or the part of `apply`, before the flags that stand between: `create -n x configmap y` is `create configmap -n x y`,
/// since these flags may be those of both.
pub fn with_parts_first(command: &Command, mut words: Vec<OsString>) -> Vec<OsString> {
    let all = [command];
    let Some(at) = next_word(&all, &words, 1) else { return words };
    let named = words.get(at).and_then(|word| command.find_subcommand(word));
    let Some(named) = named.filter(|named| named.is_args_conflicts_with_subcommands_set()) else {
        return words;
    };
    let all: Vec<&Command> = [command, named].into_iter().chain(named.get_subcommands()).collect();
    let first = at.saturating_add(1);
    let Some(part) = next_word(&all, &words, first) else { return words };
    if part > first && words.get(part).is_some_and(|word| named.find_subcommand(word).is_some()) {
        let word = words.remove(part);
        words.insert(first, word);
    }
    words
}

/// The first word from here on that is no flag and no value of one, by the flags of these commands.
fn next_word(commands: &[&Command], words: &[OsString], mut at: usize) -> Option<usize> {
    loop {
        let word = words.get(at)?.to_str()?;
        let Some(flag) = word.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
            return Some(at);
        };
        if flag == "-" {
            return None;
        }
        let is_this = |argument: &&Arg| match flag.strip_prefix('-') {
            Some(long) => {
                argument.get_long() == Some(long)
                    || argument.get_all_aliases().is_some_and(|all| all.contains(&long))
            }
            None => argument.get_short().is_some_and(|short| flag.chars().eq([short])),
        };
        let found = commands.iter().flat_map(|command| command.get_arguments()).find(is_this);
        let takes_next = found.is_some_and(|argument| {
            matches!(argument.get_action(), ArgAction::Set | ArgAction::Append)
                && !argument.is_require_equals_set()
        });
        at = at.saturating_add(if takes_next { 2 } else { 1 });
    }
}

fn with_own_groups(command: Command, argument: &Arg) -> Command {
    command.arg(argument.clone()).mut_subcommands(|below| with_own_groups(below, argument))
}
