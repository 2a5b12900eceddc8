//! The command line that a program says it has, as clap's value, and the completions of shells that follow from it.

use std::path::Path;

use anyhow::{Context as _, Result};
use clap::builder::PossibleValue;
use clap::{Arg, ArgAction, Command};
use clap_complete::Shell;
use clap_complete::env::Shells;
use proto_daemon::reference::{CommandReference, FlagReference, Reference};

/// Where the completions of each shell lie in a package.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "usr/share/bash-completion/completions/{}"),
    (Shell::Zsh, "usr/share/zsh/vendor-completions/_{}"),
    (Shell::Fish, "usr/share/fish/vendor_completions.d/{}.fish"),
];

/// Clap keeps texts for as long as the process lives, and this one is short.
fn text(of: &str) -> &'static str {
    of.to_owned().leak()
}

/// The command line.
pub fn command(reference: &Reference) -> Command {
    let command = with_parts(&reference.command);
    match reference.has_version_flag {
        true => command.version(text(&reference.version)),
        false => command,
    }
}

fn with_parts(of: &CommandReference) -> Command {
    let arguments = of.arguments.iter().map(|arg| argument(arg).required(!arg.is_optional));
    let flags = of.flags.iter().map(|flag| {
        let arg = argument(flag).long(text(&flag.name)).global(flag.is_global);
        let arg = match flag.is_optional && flag.value.is_some() {
            true => arg.num_args(0..=1).require_equals(true),
            false => arg,
        };
        match flag.short {
            Some(short) => arg.short(short),
            None => arg,
        }
    });
    Command::new(text(&of.name))
        .disable_help_subcommand(true)
        .about(text(&of.about))
        .args(arguments)
        .args(flags)
        .subcommands(of.commands.iter().map(with_parts))
}

fn argument(of: &FlagReference) -> Arg {
    let aliases: Vec<&'static str> = of.aliases.iter().map(|alias| text(alias)).collect();
    let arg = Arg::new(text(&of.name))
        .help(text(&of.help))
        .visible_aliases(aliases)
        .hide(of.is_without_effect);
    let Some(value) = &of.value else {
        return arg.action(if of.is_repeated { ArgAction::Count } else { ArgAction::SetTrue });
    };
    let arg = arg.value_name(text(value)).action(if of.is_repeated {
        ArgAction::Append
    } else {
        ArgAction::Set
    });
    let arg = match &of.default {
        Some(default) => arg.default_value(text(default)),
        None => arg,
    };
    match of.values.is_empty() {
        true => arg,
        false => arg.value_parser(
            of.values
                .iter()
                .map(|(name, about)| PossibleValue::new(text(name)).help(text(about)))
                .collect::<Vec<_>>(),
        ),
    }
}

/// Writes the completions of a program below a root.
pub fn write_completions(name: &str, reference: &Reference, root: &Path) -> Result<()> {
    for (shell, path) in COMPLETIONS {
        let mut bytes = Vec::new();
        match &reference.completion_variable {
            Some(variable) => write_asking(shell, name, variable, &mut bytes)?,
            None => clap_complete::generate(shell, &mut command(reference), name, &mut bytes),
        }
        let script = String::from_utf8(bytes).context("a completion is no text")?;
        crate::write(&root.join(path.replace("{}", name)), &script)?;
    }
    Ok(())
}

/// Writes a script that asks the program each time.
fn write_asking(shell: Shell, name: &str, variable: &str, bytes: &mut Vec<u8>) -> Result<()> {
    let shells = Shells::builtins();
    let completer = shells.completer(&shell.to_string()).context("a shell without completions")?;
    completer.write_registration(variable, name, name, name, bytes)?;
    if shell == Shell::Zsh {
        // Loaded at the first completion, which the function that it defines is then for.
        let function = name.replace('-', "_");
        let first =
            format!("[ \"$funcstack[1]\" = _{name} ] && _clap_dynamic_completer_{function}\n");
        bytes.extend_from_slice(first.as_bytes());
    }
    Ok(())
}
