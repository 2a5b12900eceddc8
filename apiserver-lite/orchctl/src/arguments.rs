//! Forms of flags that scripts use and clap does not know by itself: `--flag=false`, `-o=json`.

use clap::{ArgAction, Command};

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
