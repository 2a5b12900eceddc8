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

fn with_own_groups(command: Command, argument: &Arg) -> Command {
    command.arg(argument.clone()).mut_subcommands(|below| with_own_groups(below, argument))
}
