//! The guides name commands and flags that the programs have.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use proto_daemon::reference::{ARGUMENT, CommandReference, FlagReference, Reference};

const DOCUMENTS: [&str; 9] = [
    "README.md",
    "SECURITY.md",
    "agent/README.md",
    "proxy/README.md",
    "apiserver-lite/README.md",
    "apiserver-lite/OPERATIONS.md",
    "apiserver-lite/API-DEVELOPERS.md",
    "apiserver-lite/orchadm/README.md",
    "apiserver-lite/orchctl/README.md",
];
const PROGRAMS: [&str; 7] = [
    "orchlet",
    "orch-proxy",
    "orch-apiserver",
    "orch-controller-manager",
    "orch-scheduler",
    "orchadm",
    "orchctl",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What the built programs say of themselves; none if one is not built.
fn references() -> Option<BTreeMap<&'static str, Reference>> {
    let of_build = Path::new(env!("CARGO_BIN_EXE_packaging")).parent().map(Path::to_owned);
    let dir = std::env::var_os("ORCH_BIN_DIR").map(PathBuf::from).or(of_build)?;
    let ask = |program: &'static str| {
        let asked = Command::new(dir.join(program)).arg(ARGUMENT).output().ok()?;
        let reference = serde_json::from_slice(&asked.stdout).ok()?;
        Some((program, reference))
    };
    let all = PROGRAMS.into_iter().map(ask).collect();
    if Option::is_none(&all) {
        println!("SKIPPED: a program is not built in {}", dir.display());
    }
    all
}

/// Command lines of these programs: lines of blocks of code, and what stands between backquotes.
fn command_lines(document: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for (number, part) in document.split("```").enumerate() {
        let texts: Vec<&str> = match number % 2 {
            0 => part.split('`').skip(1).step_by(2).collect(),
            _ => part.lines().collect(),
        };
        lines.extend(texts.into_iter().map(|text| text.trim().replace('\n', " ")));
    }
    let is_command = |line: &String| {
        line.split_once(' ').is_some_and(|(program, _)| PROGRAMS.contains(&program))
    };
    lines.retain(is_command);
    lines
}

fn has_flag(flags: &[FlagReference], name: &str) -> bool {
    flags.iter().any(|flag| flag.name == name || flag.aliases.iter().any(|alias| alias == name))
}

/// What of a command line the program does not have.
fn unknown(line: &str, program: &Reference) -> Option<String> {
    let (mut command, root): (&CommandReference, _) = (&program.command, &program.command.flags);
    let mut takes_commands = true;
    for word in line.split_whitespace().skip(1) {
        if ["#", "|", "&", "&&", ";", ">", "<", "<<'END'"].contains(&word) || word.starts_with('>')
        {
            break;
        }
        if let Some(flag) = word.strip_prefix("--") {
            let name = flag.split(['=', '[', ',', ')']).next().unwrap_or_default();
            // Those of `--a-*` and of `--` alone are no flag's.
            let is_known = name.is_empty()
                || name.contains('*')
                || ["help", "version"].contains(&name)
                || has_flag(&command.flags, name)
                || has_flag(root, name);
            if !is_known {
                return Some(format!("--{name}"));
            }
            continue;
        }
        let found = command.commands.iter().find(|of| of.name == word);
        match found {
            Some(found) if takes_commands => command = found,
            _ if takes_commands && !command.commands.is_empty() && command.arguments.is_empty() => {
                let is_word = word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
                if is_word && !word.starts_with('-') {
                    return Some(word.to_owned());
                }
                takes_commands = false;
            }
            _ => takes_commands = false,
        }
    }
    None
}

#[test]
fn commands_of_the_guides_are_those_of_the_programs() {
    let Some(references) = references() else { return };
    let (mut count, mut offenders) = (0, Vec::new());
    for path in DOCUMENTS {
        let document = fs::read_to_string(root().join(path)).expect(path);
        for line in command_lines(&document) {
            count += 1;
            let program = line.split(' ').next().unwrap_or_default();
            let Some(reference) = references.get(program) else { continue };
            if let Some(unknown) = unknown(&line, reference) {
                offenders.push(format!("{path}: {unknown} in {line:?}"));
            }
        }
    }
    assert!(count > 40, "{count}");
    assert!(offenders.is_empty(), "{}", offenders.join("\n"));
}

#[test]
fn documented_flags_that_do_not_exist_are_found() {
    let flag = |name: &str| FlagReference {
        name: name.into(),
        short: None,
        aliases: Vec::new(),
        value: None,
        is_optional: false,
        is_repeated: false,
        default: None,
        values: Vec::new(),
        help: String::new(),
        is_global: false,
        is_without_effect: false,
    };
    let command = |name: &str, flags: &[&str], commands: Vec<CommandReference>| CommandReference {
        name: name.into(),
        about: String::new(),
        flags: flags.iter().map(|name| flag(name)).collect(),
        arguments: Vec::new(),
        commands,
    };
    let token = command("token", &[], vec![command("create", &["ttl"], Vec::new())]);
    let program = Reference {
        version: "1".into(),
        has_version_flag: true,
        command: command("orchadm", &["v"], vec![token]),
        file: None,
        metrics: Vec::new(),
        other_pages: Vec::new(),
        prefixes: None,
        completion_variable: None,
    };
    for (line, expected) in [
        ("orchadm token create --ttl=1h --v=5", None),
        ("orchadm token create abcdef.0123456789abcdef", None),
        ("orchadm token make", Some("make")),
        ("orchadm token create --life 1h", Some("--life")),
        ("orchadm token create # --life", None),
    ] {
        assert_eq!(unknown(line, &program).as_deref(), expected, "{line}");
    }
    let lines = command_lines("a `orchadm run` b `kubectl x`\n```\norchadm init # x\nls\n```\n");
    assert_eq!(lines, ["orchadm run", "orchadm init # x"]);
}
