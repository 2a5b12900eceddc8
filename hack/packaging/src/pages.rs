//! Pages of reference as Markdown: flags, fields of the configuration file and metrics of some programs.

use std::fmt::Write as _;

use proto_daemon::metrics::MetricDescription;
use proto_daemon::reference::{CommandReference, FieldReference, FlagReference, Reference};
use serde_json::Value;

/// The page of these programs.
pub fn text(title: &str, programs: &[Reference]) -> String {
    let mut out = format!(
        "# Reference of {title}\n\nWritten by `hack/reference` from what the programs say of themselves (`--print-reference`); `hack/test` fails where it differs.\n"
    );
    for program in programs {
        let is_alone = programs.len() == 1;
        if !is_alone {
            section(&mut out, 2, &program.command.name);
        }
        let level = if is_alone { 2 } else { 3 };
        add_command(&mut out, &program.command, &program.command.name, level);
        add_file(&mut out, program, level);
        add_metrics(&mut out, program, level);
    }
    out
}

fn section(out: &mut String, level: usize, title: &str) {
    let _ = write!(out, "\n{} {title}\n", "#".repeat(level));
}

fn add_command(out: &mut String, command: &CommandReference, line: &str, level: usize) {
    let is_program = !line.contains(' ');
    if !is_program {
        section(out, level, &format!("`{line}`"));
    }
    let _ = write!(out, "\n{}.\n", command.about.trim_end_matches('.'));
    if is_program {
        section(out, level, "Flags");
    }
    add_arguments(out, &command.arguments);
    let (unused, used): (Vec<_>, Vec<_>) =
        command.flags.iter().cloned().partition(|flag| flag.is_without_effect);
    add_flags(out, &used);
    if !unused.is_empty() {
        let names: Vec<String> = unused.iter().map(|flag| format!("`--{}`", flag.name)).collect();
        let _ = write!(out, "\nAccepted without effect: {}.\n", names.join(", "));
    }
    for part in &command.commands {
        add_command(out, part, &format!("{line} {}", part.name), level);
    }
}

fn add_arguments(out: &mut String, arguments: &[FlagReference]) {
    if arguments.is_empty() {
        return;
    }
    out.push_str("\n| argument | default | meaning |\n|---|---|---|\n");
    for of in arguments {
        let repeated = if of.is_repeated { "..." } else { "" };
        let default = of.default.as_deref().map(code).unwrap_or_default();
        let row = [format!("`{}{repeated}`", of.name.to_uppercase()), default, cell(&meaning(of))];
        let _ = writeln!(out, "| {} |", row.join(" | "));
    }
}

fn add_flags(out: &mut String, flags: &[FlagReference]) {
    if flags.is_empty() {
        return;
    }
    out.push_str("\n| flag | value | default | meaning |\n|---|---|---|---|\n");
    for flag in flags {
        let value = flag.value.as_deref().unwrap_or_default();
        let value = match (value.is_empty(), flag.is_optional) {
            (true, _) => String::new(),
            (false, true) => format!("[{value}]"),
            (false, false) => value.to_owned(),
        };
        let repeated = if flag.is_repeated && flag.value.is_some() { "..." } else { "" };
        let default = flag.default.as_deref().map(code).unwrap_or_default();
        let row =
            [spelled(flag), cell(&format!("{value}{repeated}")), default, cell(&meaning(flag))];
        let _ = writeln!(out, "| {} |", row.join(" | "));
    }
}

fn spelled(flag: &FlagReference) -> String {
    let short = flag.short.map(|short| format!("-{short}"));
    let long = [flag.name.as_str()].into_iter().chain(flag.aliases.iter().map(String::as_str));
    let all = short.into_iter().chain(long.map(|name| format!("--{name}")));
    all.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn meaning(flag: &FlagReference) -> String {
    let is_bool = flag.values.iter().all(|(name, _)| name == "true" || name == "false");
    let value = |(name, about): &(String, String)| match about.is_empty() {
        true => format!("`{name}`"),
        false => format!("`{name}` ({about})"),
    };
    let help = flag.help.trim();
    if is_bool {
        return help.to_owned();
    }
    let values: Vec<String> = flag.values.iter().map(value).collect();
    format!("{}: {}", help.trim_end_matches(['.', ':']), values.join(", "))
}

fn add_file(out: &mut String, program: &Reference, level: usize) {
    let Some(file) = &program.file else { return };
    section(out, level, "Configuration file");
    let _ = write!(
        out,
        "\n`apiVersion: {}`, `kind: {}` under `--naming=kubernetes`. A flag overrides its field.\n\n| field | default | flag | notes |\n|---|---|---|---|\n",
        file.api_version, file.kind
    );
    for field in &file.fields {
        let _ = writeln!(out, "| {} |", field_row(field).join(" | "));
    }
}

fn field_row(field: &FieldReference) -> [String; 4] {
    let default = match &field.default {
        Value::Null => String::new(),
        Value::String(text) if text.is_empty() => String::new(),
        Value::String(text) => code(text),
        other => code(&other.to_string()),
    };
    let flag = field.flag.as_ref().map(|flag| format!("`--{flag}`")).unwrap_or_default();
    let why = field.without_effect.as_ref().map(|why| format!("no effect: {why}"));
    [code(&field.path), default, flag, cell(&why.unwrap_or_default())]
}

fn add_metrics(out: &mut String, program: &Reference, level: usize) {
    let Some((theirs, ours)) = &program.prefixes else { return };
    section(out, level, "Metrics");
    let _ = write!(
        out,
        "\nAt `/metrics`. Names that begin with `{theirs}_` do so under `--naming=kubernetes`; they begin with `{ours}_` otherwise.\n"
    );
    add_table(out, &program.metrics);
    for (path, metrics) in &program.other_pages {
        let _ = write!(out, "\nAt `{path}`:\n");
        add_table(out, metrics);
    }
}

fn add_table(out: &mut String, metrics: &[MetricDescription]) {
    out.push_str("\n| metric | type | labels | meaning |\n|---|---|---|---|\n");
    for MetricDescription { name, kind, labels, help } in metrics {
        let labels: Vec<String> = labels.iter().map(|label| code(label)).collect();
        let row = [code(name), kind.clone(), labels.join(", "), cell(help)];
        let _ = writeln!(out, "| {} |", row.join(" | "));
    }
}

/// A text within a cell of a table.
fn cell(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace('|', "\\|").replace('<', "&lt;")
}

/// A text as it is, within a cell.
fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{}`", text.replace('|', "\\|")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Reference {
        let flag = |name: &str, help: &str| FlagReference {
            name: name.into(),
            short: None,
            aliases: Vec::new(),
            value: Some("FILE".into()),
            is_optional: false,
            is_repeated: false,
            default: Some("a|b".into()),
            values: Vec::new(),
            help: help.into(),
            is_global: false,
            is_without_effect: false,
        };
        let unused = FlagReference { is_without_effect: true, ..flag("old", "") };
        let go = CommandReference {
            name: "go".into(),
            about: "Goes".into(),
            flags: vec![flag("far", "As far\nas <it> goes")],
            arguments: vec![flag("to", "Where")],
            commands: Vec::new(),
        };
        Reference {
            version: "1".into(),
            has_version_flag: true,
            command: CommandReference {
                name: "thing".into(),
                about: "Does things.".into(),
                flags: vec![flag("config", "A | B"), unused],
                arguments: Vec::new(),
                commands: vec![go],
            },
            file: None,
            metrics: vec![MetricDescription {
                name: "kubething_total".into(),
                kind: "counter".into(),
                labels: vec!["kind".into()],
                help: "Things.".into(),
            }],
            other_pages: vec![("/metrics/more".into(), Vec::new())],
            prefixes: Some(("kubething".into(), "orchthing".into())),
            completion_variable: None,
        }
    }

    #[test]
    fn a_page_has_flags_commands_and_metrics() {
        let page = text("thing", &[program()]);
        for line in [
            "\nDoes things.\n",
            "\n## Flags\n",
            "| `--config` | FILE | `a\\|b` | A \\| B |\n",
            "\nAccepted without effect: `--old`.\n",
            "\n## `thing go`\n\nGoes.\n",
            "| `--far` | FILE | `a\\|b` | As far as &lt;it> goes |\n",
            "| `TO` | `a\\|b` | Where |\n",
            "| `kubething_total` | counter | `kind` | Things. |\n",
            "\nAt `/metrics/more`:\n",
        ] {
            assert!(page.contains(line), "{line:?} in\n{page}");
        }
        assert!(!page.contains("| `--old`"));
        let both = text("things", &[program(), program()]);
        assert!(both.contains("\n## thing\n") && both.contains("\n### Metrics\n"));
    }
}
