//! Flags that override the configuration file: their arguments and values.

use std::collections::BTreeMap;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use serde_json::{Map, Value};

use super::table::{OVERRIDES, Row, Shape};
use super::texts::read;

/// Values of overriding flags by field path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides(BTreeMap<&'static str, Value>);

impl Overrides {
    /// Applies the flags to the file's JSON tree.
    pub fn lay_over(&self, tree: &mut Value) {
        for (path, value) in &self.0 {
            let mut at = &mut *tree;
            for name in path.split('.') {
                if !at.is_object() {
                    *at = Value::Object(Map::new());
                }
                // Indexing an object creates the field.
                at = &mut at[name];
            }
            *at = value.clone();
        }
    }
}

impl Args for Overrides {
    fn augment_args(command: Command) -> Command {
        // The last of repeated flags counts, except lists, which are appended.
        command.args_override_self(true).args(OVERRIDES.iter().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument((flag, path, shape, help): &Row) -> Arg {
    let argument =
        Arg::new(*flag).long(*flag).help(format!("{help} (`{path}`)")).allow_hyphen_values(true);
    let shape = *shape;
    let argument =
        argument.value_parser(move |text: &str| read(shape, text).map(|_| text.to_owned()));
    match shape {
        Shape::Switch => argument
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_name("BOOL"),
        Shape::List
        | Shape::Pairs
        | Shape::Switches
        | Shape::Taints
        | Shape::PerNode
        | Shape::Headers => argument.action(ArgAction::Append).value_name("LIST"),
        Shape::Number => argument.value_name("NUMBER"),
        Shape::Text => argument.value_name("VALUE"),
    }
}

impl FromArgMatches for Overrides {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut overrides = Self::default();
        overrides.update_from_arg_matches(matches)?;
        Ok(overrides)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for (flag, path, shape, _) in OVERRIDES {
            let Some(values) = matches.get_many::<String>(flag) else { continue };
            // Repeated flags append to a list; of other formats the last one counts.
            let text = values.cloned().collect::<Vec<_>>().join(",");
            let value = read(*shape, &text).map_err(|why| {
                clap::Error::raw(
                    clap::error::ErrorKind::ValueValidation,
                    format!("--{flag}: {why}\n"),
                )
            })?;
            self.0.insert(path, value);
        }
        Ok(())
    }
}
