//! What a program says of itself: its flags, the fields of its configuration file, its metrics. `PROGRAM --print-reference` prints it as JSON; `hack/package`
//! and `hack/reference` make pages, manual pages and completions of shells from it.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Arg, ArgAction, Command, CommandFactory};
use proto_api::names::{Names, Profile};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::FileType;
use crate::exit::{Failure, conclude};
use crate::metrics::{BuildInfo, MetricDescription, Metrics};

/// The only argument of a process that prints its reference.
pub const ARGUMENT: &str = "--print-reference";

/// Flags, files and metrics of a program, for its reference page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reference {
    /// Version of the program.
    pub version: String,
    /// Whether it has a flag that prints its version.
    pub has_version_flag: bool,
    /// The program, with its flags and commands.
    pub command: CommandReference,
    /// Its configuration file, if it reads one.
    pub file: Option<FileReference>,
    /// Its metrics at `/metrics`, in the order of their names.
    pub metrics: Vec<MetricDescription>,
    /// Metrics of other pages, by their paths.
    pub other_pages: Vec<(String, Vec<MetricDescription>)>,
    /// What the names of its own metrics begin with, under Kubernetes' names and under the project's.
    pub prefixes: Option<(String, String)>,
    /// The variable by which scripts of shells ask it for completions; none if it has no more than its flags and commands.
    pub completion_variable: Option<String>,
}

/// A program, or one of its commands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommandReference {
    pub name: String,
    /// What it does.
    pub about: String,
    /// Its flags; those of all commands stand at the program only.
    pub flags: Vec<FlagReference>,
    /// Arguments without a flag, in their order.
    pub arguments: Vec<FlagReference>,
    pub commands: Vec<CommandReference>,
}

/// A flag or an argument.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlagReference {
    /// Its name, without dashes.
    pub name: String,
    /// Its letter.
    pub short: Option<char>,
    /// Other names that are shown.
    pub aliases: Vec<String>,
    /// What its value is called; none for one that takes no value.
    pub value: Option<String>,
    /// Whether the value may be left out.
    pub is_optional: bool,
    /// Whether it may be given several times.
    pub is_repeated: bool,
    /// Its value when it is not given.
    pub default: Option<String>,
    /// The values that it may have, with what they mean; empty if there are others.
    pub values: Vec<(String, String)>,
    /// What it means.
    pub help: String,
    /// Whether commands have it too.
    pub is_global: bool,
    /// Whether it is accepted and does nothing.
    pub is_without_effect: bool,
}

/// A configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileReference {
    /// `apiVersion` under Kubernetes' names.
    pub api_version: String,
    /// `kind` under Kubernetes' names.
    pub kind: String,
    pub fields: Vec<FieldReference>,
}

/// A field of a configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FieldReference {
    /// Its path, as `authentication.webhook.enabled`.
    pub path: String,
    /// Its value when it is not set.
    pub default: Value,
    /// The flag that overrides it.
    pub flag: Option<String>,
    /// Why it has no effect; none if it has one.
    pub without_effect: Option<String>,
}

impl Reference {
    /// That of a program with these flags, without file and metrics.
    pub fn new(version: &str, mut command: Command) -> Self {
        command.build();
        Self {
            version: version.to_owned(),
            has_version_flag: command.get_version().is_some(),
            command: CommandReference::new(&command, true),
            file: None,
            metrics: Vec::new(),
            other_pages: Vec::new(),
            prefixes: None,
            completion_variable: None,
        }
    }

    /// Adds the metrics of a component, as `let` or `proxy`; `register` is what the program itself does, under Kubernetes' names.
    ///
    /// # Errors
    /// A metric cannot be registered.
    pub fn add_metrics(
        &mut self,
        component: &str,
        register: impl FnOnce(&Metrics, &'static Names) -> Result<(), prometheus::Error>,
    ) -> Result<(), Failure> {
        let names = Names::new(Profile::Kubernetes);
        let prefix = names.metric_prefix(component);
        let build = BuildInfo { version: "", commit: "" };
        let metrics = Metrics::new(&prefix, build).map_err(Failure::run)?;
        register(&metrics, names).map_err(Failure::run)?;
        self.metrics.extend(metrics.described());
        self.metrics.sort_by(|a, b| a.name.cmp(&b.name));
        self.prefixes = Some((prefix, Names::new(Profile::default()).metric_prefix(component)));
        Ok(())
    }

    /// Adds the metrics of a page that is written on request, of an example with a value of each.
    pub fn add_page(&mut self, path: &str, example: &str) {
        let metrics = described_in(example);
        if path == "/metrics" {
            self.metrics.extend(metrics);
            self.metrics.sort_by(|a, b| a.name.cmp(&b.name));
        } else {
            self.other_pages.push((path.to_owned(), metrics));
        }
    }

    /// Leaves out a flag that all programs have and this one refuses.
    pub fn leave_out(&mut self, flag: &str) {
        self.command.flags.retain(|of| of.name != flag);
    }

    /// Says of flags that they are accepted and do nothing.
    pub fn mark_without_effect(&mut self, flags: &[&str]) {
        for flag in &mut self.command.flags {
            flag.is_without_effect |= flags.contains(&flag.name.as_str());
        }
    }
}

impl CommandReference {
    fn new(command: &Command, is_root: bool) -> Self {
        // A flag of all commands is listed once.
        let own = || command.get_arguments().filter(|arg| is_root || !arg.is_global_set());
        let all = own().filter(|arg| !["help", "version"].contains(&arg.get_id().as_str()));
        let (arguments, flags): (Vec<&Arg>, Vec<&Arg>) = all.partition(|arg| arg.is_positional());
        // A hidden one is another form of those that are shown.
        let shown = arguments.into_iter().filter(|arg| !arg.is_hide_set());
        let commands = command.get_subcommands().filter(|command| command.get_name() != "help");
        let about = command.get_long_about().or(command.get_about());
        Self {
            name: command.get_name().to_owned(),
            about: about.map(ToString::to_string).unwrap_or_default(),
            flags: flags.into_iter().map(FlagReference::new).collect(),
            arguments: shown.map(FlagReference::new).collect(),
            commands: commands.map(|command| Self::new(command, false)).collect(),
        }
    }
}

impl FlagReference {
    fn new(arg: &Arg) -> Self {
        let takes_value = arg.get_action().takes_values();
        let named = arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
        let defaults: Vec<_> =
            arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let help = arg.get_long_help().or(arg.get_help());
        let values = arg.get_possible_values().into_iter().filter(|_| takes_value);
        let about = |value: &clap::builder::PossibleValue| {
            value.get_help().map(ToString::to_string).unwrap_or_default()
        };
        Self {
            name: arg.get_long().unwrap_or(arg.get_id().as_str()).to_owned(),
            short: arg.get_short(),
            aliases: arg.get_visible_aliases().into_iter().flatten().map(str::to_owned).collect(),
            value: takes_value.then(|| named.unwrap_or_else(|| "VALUE".to_owned())),
            is_optional: match arg.is_positional() {
                true => !arg.is_required_set(),
                false => arg.get_num_args().is_some_and(|count| count.min_values() == 0),
            },
            is_repeated: matches!(arg.get_action(), ArgAction::Append | ArgAction::Count),
            default: (takes_value && !defaults.is_empty()).then(|| defaults.join(",")),
            values: values.map(|value| (value.get_name().to_owned(), about(&value))).collect(),
            help: help.map(ToString::to_string).unwrap_or_default(),
            is_global: arg.is_global_set(),
            // What is hidden in the programs is there for the command lines of others.
            is_without_effect: arg.is_hide_set(),
        }
    }
}

impl FileReference {
    /// The fields of a file with their defaults.
    ///
    /// # Errors
    /// The defaults are no JSON.
    pub fn new(of: FileType, defaults: &impl Serialize) -> Result<Self, Failure> {
        let mut fields = Vec::new();
        add_fields(&mut fields, "", serde_json::to_value(defaults).map_err(Failure::run)?);
        Ok(Self { api_version: of.api_version, kind: of.kind, fields })
    }

    /// Notes of each field the flag that overrides it, and why it has no effect.
    pub fn note(
        &mut self,
        flag: impl Fn(&str) -> Option<String>,
        without_effect: impl Fn(&str) -> Option<&'static str>,
    ) {
        for field in &mut self.fields {
            field.flag = flag(&field.path);
            field.without_effect = without_effect(&field.path).map(str::to_owned);
        }
    }
}

/// Adds the leaves below a value. A map without entries is one: what it may hold is not known.
fn add_fields(fields: &mut Vec<FieldReference>, path: &str, value: Value) {
    match value {
        Value::Object(map) if !map.is_empty() && !map.keys().any(|key| key.contains('.')) => {
            for (name, value) in map {
                let path = if path.is_empty() { name } else { format!("{path}.{name}") };
                add_fields(fields, &path, value);
            }
        }
        // A list that has an object to show its fields.
        Value::Array(list) if list.first().is_some_and(Value::is_object) => {
            for (index, value) in list.into_iter().enumerate() {
                add_fields(fields, &format!("{path}[{index}]"), value);
            }
        }
        default => fields.push(FieldReference {
            path: path.to_owned(),
            default,
            flag: None,
            without_effect: None,
        }),
    }
}

/// The metrics of a text in Prometheus' format; their labels are those of the first value.
fn described_in(text: &str) -> Vec<MetricDescription> {
    let mut all: Vec<MetricDescription> = Vec::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|l| l.split_once(' ')) {
            all.push(MetricDescription {
                name: name.to_owned(),
                kind: "untyped".to_owned(),
                labels: Vec::new(),
                help: help.to_owned(),
            });
        }
        let Some(last) = all.last_mut() else { continue };
        if let Some((_, kind)) = line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' ')) {
            kind.clone_into(&mut last.kind);
        } else if let Some((_, labels)) = line.split_once('{').filter(|_| last.labels.is_empty()) {
            let names = labels.split("=\"").map(|part| part.rsplit([',', '"']).next());
            let mut names: Vec<String> = names.flatten().map(str::to_owned).collect();
            // Behind the last value there is no name.
            names.pop();
            last.labels = names;
        }
    }
    all
}

/// Prints the reference and says how the process ends, if that is what it was started for.
pub fn answer<F: CommandFactory>(
    version: &str,
    complete: impl FnOnce(&mut Reference) -> Result<(), Failure>,
) -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != ARGUMENT || arguments.next().is_some() {
        return None;
    }
    let mut reference = Reference::new(version, F::command());
    let name = reference.command.name.clone();
    let end = complete(&mut reference).and_then(|()| print(&reference));
    Some(conclude(&name, end))
}

fn print(reference: &Reference) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(reference).map_err(Failure::run)?;
    writeln!(io::stdout(), "{text}").map_err(Failure::run)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use prometheus::{IntCounter, IntGaugeVec, Opts};

    use super::*;

    /// Does things.
    #[derive(Parser)]
    #[command(name = "thing")]
    struct Flags {
        /// How many.
        #[arg(long, short = 'n', default_value_t = 3, visible_alias = "number", global = true)]
        count: u8,
        /// For others.
        #[arg(long, hide = true)]
        unused: Option<String>,
        /// Whether.
        #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL")]
        maybe: Option<bool>,
        #[command(subcommand)]
        command: Option<Sub>,
    }

    #[derive(clap::Subcommand)]
    enum Sub {
        /// Goes.
        Go {
            /// Where.
            to: Vec<String>,
        },
    }

    #[test]
    fn flags_and_commands_are_those_of_the_parser() {
        let reference = Reference::new("1", Flags::command());
        let command = &reference.command;
        assert_eq!((command.name.as_str(), command.about.as_str()), ("thing", "Does things"));
        let flag = |name: &str| command.flags.iter().find(|flag| flag.name == name).unwrap();
        let count = flag("count");
        assert_eq!((count.short, count.default.as_deref()), (Some('n'), Some("3")));
        assert_eq!((count.aliases.as_slice(), count.is_global), (&["number".to_owned()][..], true));
        assert!(flag("unused").is_without_effect && !count.is_without_effect);
        let maybe = flag("maybe");
        assert!(maybe.is_optional && maybe.values.len() == 2, "{maybe:?}");
        let [go] = command.commands.as_slice() else { panic!("{:?}", command.commands) };
        assert_eq!((go.name.as_str(), go.flags.len(), go.arguments.len()), ("go", 0, 1));
        assert!(go.arguments[0].is_repeated && go.arguments[0].is_optional);
        assert_eq!(command.flags.len(), 3, "help is not told");
        assert!(!reference.has_version_flag);
    }

    #[test]
    fn metrics_are_listed_before_they_have_values() {
        let mut reference = Reference::new("1", Flags::command());
        let added = reference.add_metrics("let", |metrics, names| {
            let things = format!("{}_things", names.metric_prefix("let"));
            metrics
                .register(IntGaugeVec::new(Opts::new(things, "Things, by kind."), &["kind"])?)?;
            metrics.register(IntCounter::new("a_total", "First.")?).map(drop)
        });
        added.unwrap();
        let named: Vec<_> = reference
            .metrics
            .iter()
            .map(|metric| (metric.name.as_str(), metric.kind.as_str(), metric.labels.join(",")))
            .collect();
        assert_eq!(named[0], ("a_total", "counter", String::new()));
        assert!(named.contains(&("kubelet_things", "gauge", "kind".to_owned())), "{named:?}");
        assert!(named.contains(&("process_cpu_seconds_total", "counter", String::new())));
        assert_eq!(reference.prefixes, Some(("kubelet".to_owned(), "orchlet".to_owned())));
    }

    #[test]
    fn metrics_of_a_page_are_read_from_an_example() {
        let page = "# HELP a_total Of a.\n# TYPE a_total counter\na_total{x=\"\",y=\"1\"} 2 3\na_total{z=\"\"} 1\n# HELP b Of b.\n# TYPE b gauge\nb 0\n";
        let mut reference = Reference::new("1", Flags::command());
        reference.add_page("/metrics/other", page);
        let [(path, metrics)] = reference.other_pages.as_slice() else { panic!("{reference:?}") };
        assert_eq!((path.as_str(), metrics.len()), ("/metrics/other", 2));
        let a = &metrics[0];
        assert_eq!(
            (a.name.as_str(), a.kind.as_str(), a.help.as_str()),
            ("a_total", "counter", "Of a.")
        );
        assert_eq!(a.labels, ["x", "y"]);
        assert_eq!((metrics[1].kind.as_str(), metrics[1].labels.len()), ("gauge", 0));
    }

    #[test]
    fn fields_have_paths_and_defaults() {
        let defaults = serde_json::json!({"a": {"b": true, "c": {}}, "d": {"x.y": "1"}, "e": []});
        let of = FileType { api_version: "v1".into(), kind: "Kind".into() };
        let mut file = FileReference::new(of, &defaults).unwrap();
        let paths: Vec<&str> = file.fields.iter().map(|field| field.path.as_str()).collect();
        assert_eq!(paths, ["a.b", "a.c", "d", "e"]);
        assert_eq!(file.fields[0].default, Value::Bool(true));
        file.note(
            |path| (path == "a.b").then(|| "b".to_owned()),
            |path| (path == "e").then_some("no"),
        );
        assert_eq!((file.fields[0].flag.as_deref(), &file.fields[3].flag), (Some("b"), &None));
        assert_eq!(file.fields[3].without_effect.as_deref(), Some("no"));
    }
}
