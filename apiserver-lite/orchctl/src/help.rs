//! What `--help` shows beside flags: the commands in groups, and examples. Each example is a command line that is read in a test.

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Commands by what they are for.
const GROUPS: &[(&str, &[&str])] = &[
    ("See what there is", &["get", "describe", "events", "logs", "top", "explain", "wait"]),
    ("Find out why", &["why", "tree", "timeline", "trace", "ui"]),
    (
        "Create and change",
        &[
            "create", "apply", "diff", "edit", "replace", "patch", "delete", "label", "annotate",
            "set", "run", "expose",
        ],
    ),
    ("Roll out and scale", &["rollout", "scale", "autoscale"]),
    ("Reach containers", &["exec", "attach", "port-forward", "cp", "debug", "proxy"]),
    ("Nodes and access", &["cordon", "uncordon", "drain", "taint", "auth", "certificate"]),
    (
        "Server and settings",
        &[
            "api-resources",
            "api-versions",
            "cluster-info",
            "version",
            "config",
            "plugin",
            "completion",
        ],
    ),
];

/// Command lines without the program, each with what it does, by the command that shows them.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "get",
        &[
            ("get pods -A -o wide", "pods of all namespaces, with their nodes"),
            ("get deploy,svc -l app=web", "two kinds, by a label"),
            ("get pod web-0 -o yaml", "one object, whole"),
            ("get events --sort-by=.lastTimestamp -w", "events as they come"),
            ("get pods -o jsonpath={.items[*].spec.nodeName}", "one field of each"),
        ],
    ),
    (
        "describe",
        &[
            ("describe pod web-0", "a pod in words, with its events"),
            ("describe nodes", "all nodes"),
        ],
    ),
    ("events", &[("events --for pod/web-0 -w", "events of a pod, as they come")]),
    (
        "logs",
        &[
            ("logs -f deploy/web -c main", "follow a container of a deployment's pod"),
            ("logs web-0 --previous", "what the container wrote before its last restart"),
            ("logs -l app=web --prefix --tail 20", "the last lines of several pods"),
        ],
    ),
    ("top", &[("top pod -A --sort-by memory", "the largest pods first")]),
    ("explain", &[("explain pod.spec.containers", "the fields of containers")]),
    (
        "wait",
        &[
            ("wait --for=condition=Ready pod/web-0 --timeout 60s", "until a pod is ready"),
            ("wait --for=delete pod -l app=web", "until pods have gone"),
        ],
    ),
    (
        "why",
        &[
            ("why web-0", "why a pod is not running or not ready"),
            ("why deploy/web", "the same of a deployment and its pods"),
            ("why node/a", "why a node is not ready or takes no pods"),
            ("why ns/old", "why a namespace that was deleted stays"),
        ],
    ),
    ("tree", &[("tree deploy/web", "a deployment, its replica sets and their pods")]),
    (
        "timeline",
        &[
            ("timeline web-0", "how a pod started, moment by moment"),
            ("timeline web-0 -o perfetto", "the same as a trace for ui.perfetto.dev"),
        ],
    ),
    (
        "trace",
        &[
            ("trace svc/web --port 80", "where this node sends packets to a service"),
            ("trace svc/web --print", "the commands for other nodes"),
        ],
    ),
    ("ui", &[("ui -A", "pods and events of all namespaces")]),
    (
        "apply",
        &[
            ("apply -f app.yaml", "create or change the objects of a file"),
            ("apply -f deploy/ -R --server-side", "those of a directory, merged by the server"),
            ("apply -f app.yaml --prune -l app=web", "and delete what the file has no longer"),
        ],
    ),
    (
        "create",
        &[
            ("create deployment web --image=nginx --replicas=2", "a deployment"),
            ("create configmap c --from-literal=a=b --from-file=app.conf", "a config map"),
            ("create -f app.yaml", "the objects of a file"),
        ],
    ),
    ("diff", &[("diff -f app.yaml", "what apply would change; exits with 1 if something")]),
    ("edit", &[("edit deploy/web", "in the editor of KUBE_EDITOR or EDITOR")]),
    ("replace", &[("replace -f app.yaml --force", "delete the objects and create them again")]),
    (
        "patch",
        &[
            (r#"patch deploy web -p {"spec":{"replicas":3}}"#, "merged by the fields' kinds"),
            (
                r#"patch node n1 --type=json -p [{"op":"remove","path":"/spec/taints"}]"#,
                "a JSON patch",
            ),
        ],
    ),
    (
        "delete",
        &[
            ("delete pod web-0", "and wait until it has gone"),
            ("delete -f app.yaml --ignore-not-found", "the objects of a file"),
            ("delete deploy,svc -l app=web", "by a label"),
        ],
    ),
    (
        "label",
        &[
            ("label pod web-0 tier=front", "set"),
            ("label pods --all tier- --overwrite", "remove from all"),
        ],
    ),
    ("annotate", &[("annotate deploy web owner=me --overwrite", "replace a value")]),
    ("set image", &[("set image deploy/web nginx=nginx:1.26", "the image of the container nginx")]),
    ("set env", &[("set env deploy/web MODE=fast OLD-", "set one variable, remove another")]),
    (
        "set resources",
        &[(
            "set resources deploy/web --requests=cpu=100m --limits=memory=256Mi",
            "of all containers",
        )],
    ),
    (
        "run",
        &[
            ("run web --image=nginx --port=80 --expose", "a pod with a service"),
            (
                "run shell --image=busybox -it --rm --restart=Never -- sh",
                "a shell that goes afterwards",
            ),
        ],
    ),
    ("expose", &[("expose deploy web --port=80 --target-port=8080", "a service for its pods")]),
    (
        "rollout",
        &[
            ("rollout status deploy/web", "wait until an update has ended"),
            ("rollout history deploy/web", "its revisions"),
            ("rollout undo deploy/web --to-revision=2", "back to one of them"),
            ("rollout restart ds/agent", "replace all pods"),
        ],
    ),
    ("scale", &[("scale deploy/web --replicas=3", "three pods")]),
    ("autoscale", &[("autoscale deploy web --min=2 --max=5 --cpu-percent=80", "two to five pods")]),
    (
        "exec",
        &[
            ("exec -it web-0 -- sh", "a shell in a pod"),
            ("exec deploy/web -c main -- env", "a command in a container of a deployment's pod"),
        ],
    ),
    ("attach", &[("attach -it web-0", "the streams of its process")]),
    (
        "port-forward",
        &[("port-forward svc/web 8080:80", "localhost:8080 leads to a pod of the service")],
    ),
    (
        "cp",
        &[
            ("cp web-0:/var/log/app.log app.log", "from a container"),
            ("cp conf shop/web-0:/etc/app -c main", "a directory into one"),
        ],
    ),
    (
        "debug",
        &[
            ("debug -it web-0 --image=busybox --target=main", "a shell beside a container"),
            ("debug -it node/n1 --image=busybox", "one on a node, whose files are below /host"),
            (
                "debug -it web-0 --copy-to=web-debug -c main -- sh",
                "a copy of a pod that runs a shell",
            ),
        ],
    ),
    ("proxy", &[("proxy --port=8001", "the API at localhost:8001, as this user")]),
    (
        "drain",
        &[("drain n1 --ignore-daemonsets --delete-emptydir-data", "evict the pods of a node")],
    ),
    (
        "taint",
        &[
            ("taint nodes n1 only=gpu:NoSchedule", "set"),
            ("taint nodes n1 only:NoSchedule-", "remove"),
        ],
    ),
    (
        "auth can-i",
        &[
            ("auth can-i create pods -n shop", "yes or no, also as the exit code"),
            ("auth can-i --list", "all that is allowed"),
        ],
    ),
    (
        "auth reconcile",
        &[
            ("auth reconcile -f roles.yaml", "add rules and subjects that are missing"),
            (
                "auth reconcile -f roles.yaml --remove-extra-permissions --dry-run=client",
                "what would go",
            ),
        ],
    ),
    ("certificate", &[("certificate approve csr-1", "sign a request")]),
    (
        "config",
        &[
            ("config get-contexts", "what there is"),
            ("config use-context shop", "the context from now on"),
            ("config set-context --current --namespace=shop", "the namespace from now on"),
        ],
    ),
    ("plugin", &[("plugin list", "programs of PATH named orchctl-NAME or kubectl-NAME")]),
    ("completion", &[("completion bash", "for: source <(orchctl completion bash)")]),
];

/// The program's command with its groups and examples.
pub fn with_help(command: Command) -> Command {
    let grouped = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{}\nFlags of every command:\n{{options}}{{after-help}}",
        groups_text(&command)
    );
    let mut command = command.help_template(grouped).after_help(
        "`orchctl COMMAND --help` shows the flags of a command, and examples. Without --kubeconfig the files of ORCHCONFIG or KUBECONFIG \
         count, else $HOME/.orch/config or $HOME/.kube/config.",
    );
    for (path, examples) in EXAMPLES {
        command = at(command, path, &|command| command.after_help(examples_text(examples)));
    }
    command
}

/// The help for a command line that names no command, as kubectl answers it; `None` for any other one.
pub fn of_no_command(error: &clap::Error) -> Option<String> {
    let is_it = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    is_it.then(|| error.render().to_string())
}

/// What leads where a word of kubectl's leads that is not one of ours.
pub fn hint(error: &clap::Error) -> Option<&'static str> {
    let words = [ContextKind::InvalidSubcommand, ContextKind::InvalidArg];
    let word = words.into_iter().find_map(|kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    })?;
    match word.split('=').next()? {
        "-k" | "--kustomize" | "kustomize" => Some(
            "Kustomize directories are not rendered here: kustomize build DIR | orchctl apply -f -",
        ),
        "options" => Some("`orchctl --help` shows the flags of every command."),
        "--version" => Some("`orchctl version` shows the versions of client and server."),
        _ => None,
    }
}

/// Changes the command at a path.
fn at(command: Command, path: &str, change: &dyn Fn(Command) -> Command) -> Command {
    let (first, rest) = path.split_once(' ').unwrap_or((path, ""));
    command.mut_subcommand(first, |found| match rest {
        "" => change(found),
        rest => at(found, rest, change),
    })
}

fn groups_text(command: &Command) -> String {
    let names = GROUPS.iter().flat_map(|(_, names)| names.iter());
    let width = names.map(|name| name.len()).max().unwrap_or_default();
    let mut text = String::new();
    for (title, names) in GROUPS {
        text.push_str(&format!("\n{title}:\n"));
        for name in *names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            text.push_str(&format!("  {name:width$}  {about}\n"));
        }
    }
    text
}

fn examples_text(examples: &[(&str, &str)]) -> String {
    let mut text = "Examples:".to_owned();
    for (line, meaning) in examples {
        text.push_str(&format!("\n  # {meaning}\n  orchctl {}", quoted(line)));
    }
    text
}

/// A line for a shell: words with characters that it would read are quoted.
fn quoted(line: &str) -> String {
    let acts = |c: char| matches!(c, '{' | '[' | '*' | '"' | '$' | '<');
    let word = |word: &str| match word.split_once('=') {
        Some((flag, value)) if flag.starts_with('-') && value.contains(acts) => {
            format!("{flag}='{value}'")
        }
        _ if word.contains(acts) => format!("'{word}'"),
        _ => word.to_owned(),
    };
    line.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ffi::OsString;

    use clap::CommandFactory as _;

    use super::*;
    use crate::command::{Arguments, parse};

    #[test]
    fn every_command_is_in_a_group() {
        let command = Arguments::command();
        let all: BTreeSet<&str> = command.get_subcommands().map(Command::get_name).collect();
        let grouped: Vec<&str> =
            GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        assert_eq!(grouped.iter().copied().collect::<BTreeSet<_>>(), all);
        assert_eq!(grouped.len(), all.len(), "twice");
    }

    #[test]
    fn examples_are_command_lines() {
        for (path, examples) in EXAMPLES {
            for (line, _) in *examples {
                assert!(line.starts_with(path), "{path}: {line}");
                let words = format!("orchctl {line}");
                let read = parse(words.split(' ').map(OsString::from));
                assert!(
                    read.is_ok(),
                    "{line}: {}",
                    read.err().map(|e| e.to_string()).unwrap_or_default()
                );
            }
        }
    }

    #[test]
    fn lines_are_quoted_for_a_shell() {
        assert_eq!(quoted("get pods -o jsonpath={.a}"), "get pods -o 'jsonpath={.a}'");
        assert_eq!(quoted("x --a={b}"), "x --a='{b}'");
    }

    #[test]
    fn words_of_kubectl_lead_on() {
        for (line, part) in [
            ("orchctl apply -k .", "kustomize build"),
            ("orchctl create --kustomize=x", "kustomize build"),
            ("orchctl kustomize x", "kustomize build"),
            ("orchctl options", "orchctl --help"),
            ("orchctl --version", "orchctl version"),
        ] {
            let error = parse(line.split(' ').map(OsString::from)).expect_err(line);
            assert!(hint(&error).is_some_and(|hint| hint.contains(part)), "{line}: {error}");
        }
        let error = parse(["orchctl", "gte"].map(OsString::from).into_iter()).expect_err("unknown");
        assert_eq!(hint(&error), None);
    }

    #[test]
    fn a_command_line_without_a_command_gets_help() {
        for (line, is_it) in [
            ("orchctl", true),
            ("orchctl rollout", true),
            ("orchctl config", true),
            ("orchctl gte", false),
            ("orchctl why", false),
            ("orchctl --help", false),
        ] {
            let error = parse(line.split(' ').map(OsString::from)).expect_err(line);
            let help = of_no_command(&error);
            assert_eq!(help.is_some(), is_it, "{line}");
            assert!(help.is_none_or(|help| help.contains("Usage: orchctl")), "{line}");
        }
    }

    #[test]
    fn help_shows_groups_and_examples() {
        let help = |line: &str| {
            let words = line.split(' ').map(OsString::from);
            parse(words).expect_err("help").to_string()
        };
        let whole = help("orchctl --help");
        assert!(whole.contains("\nFind out why:\n  why "), "{whole}");
        assert!(whole.contains("--kubeconfig") && !whole.contains("Commands:"), "{whole}");
        for line in ["orchctl get --help", "orchctl help get"] {
            assert!(help(line).contains("Examples:\n  # pods of all namespaces"), "{line}");
        }
        assert!(help("orchctl help set image").contains("orchctl set image deploy/web"));
        assert_eq!(help("orchctl help"), whole);
    }
}
