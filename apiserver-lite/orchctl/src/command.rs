//! The commands, and which function runs each.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use orchctl_changes as changes;
use orchctl_client::{CommandError, GlobalFlags, Output, Session};
use orchctl_commands as commands;
use orchctl_commands::{api_resources, api_versions, get, version};

use crate::{arguments, completion, help};

/// Asks and changes the API of a cluster, as kubectl does.
#[derive(Debug, Parser)]
#[command(name = "orchctl", disable_help_subcommand = true, max_term_width = 100)]
pub struct Arguments {
    #[command(flatten)]
    pub flags: GlobalFlags,
    #[command(subcommand)]
    pub command: Command,
    /// The words of the command without flags and arguments, as `orchctl rollout status`.
    #[arg(skip)]
    pub words: String,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    // What reads.
    /// Show objects
    Get(get::Args),
    /// List the resources that the server serves
    ApiResources(api_resources::Args),
    /// List the groups and versions that the server serves
    ApiVersions(api_versions::Args),
    /// Show the versions of client and server
    Version(version::Args),
    /// Show where the control plane is
    ClusterInfo(commands::cluster_info::Args),
    /// Show and edit the client configuration
    Config(commands::config::Args),
    /// Ask who the user is and what is allowed, and bring roles and bindings up to date
    Auth(changes::auth::Args),
    /// Show objects in words, with what belongs to them
    Describe(commands::describe::Args),
    /// Show the fields of a kind
    Explain(commands::explain::Args),
    /// Show what happened
    Events(commands::events::Args),
    /// Show what containers wrote
    #[command(visible_alias = "log")]
    Logs(commands::logs::Args),
    /// Show what nodes and pods use
    Top(commands::top::Args),
    /// Wait until objects have a condition or are deleted
    Wait(commands::wait::Args),
    /// Show the owners above an object and the dependents below it
    Tree(commands::tree::Args),
    /// Say what is wrong with an object, for example a pod, workload, service, node or namespace: exits with 1 if something is
    Why(commands::why::Args),
    /// Show how a pod started, with the time between the steps
    Timeline(commands::timeline::Args),
    /// Explain the path of a packet to a service through the kernel of this node
    ///
    /// The service is read from the API, its path from the node's proxy. A worker has no client configuration of a user: name one with --kubeconfig, for
    /// example that of its agent, /etc/kubernetes/kubelet.conf, as root; or have the commands printed elsewhere, with --print.
    Trace(commands::trace::Args),
    /// Show nodes, pods, events and logs on the full screen, driven by keys
    Ui(commands::ui::Args),
    // What changes and what streams.
    /// Bring objects to what files describe
    Apply(changes::apply::Args),
    /// Create objects of files or of flags
    Create(changes::create::Args),
    /// Put objects of files in the place of others
    Replace(changes::replace::Args),
    /// Change a part of objects
    Patch(changes::patch::Args),
    /// Delete objects
    Delete(changes::delete::Args),
    /// Set and remove labels
    Label(changes::label::Args),
    /// Set and remove annotations
    Annotate(changes::label::Args),
    /// Set the number of replicas
    Scale(changes::scale::Args),
    /// Follow and steer updates of workloads
    Rollout(changes::rollout::Args),
    /// Show what apply would change
    Diff(changes::diff::Args),
    /// Edit objects
    Edit(changes::edit::Args),
    /// Set images, environment, resources, accounts and selectors
    Set(changes::set::Args),
    /// Make a Service for a workload
    Expose(changes::expose::ExposeArgs),
    /// Make an autoscaler for a workload
    Autoscale(changes::expose::AutoscaleArgs),
    /// Run an image in a pod
    Run(changes::run::Args),
    /// Set and remove taints of nodes
    Taint(changes::taint::Args),
    /// Keep new pods from nodes
    Cordon(changes::drain::CordonArgs),
    /// Let nodes have new pods
    Uncordon(changes::drain::CordonArgs),
    /// Have pods leave nodes
    Drain(changes::drain::DrainArgs),
    /// Decide about requests for certificates
    Certificate(changes::certificate::Args),
    /// Run a command in a container
    Exec(changes::exec::ExecArgs),
    /// Join the streams of a container
    Attach(changes::exec::AttachArgs),
    /// Lead local ports to a pod
    PortForward(changes::port_forward::Args),
    /// Pass local requests on to the API server, as this user
    Proxy(changes::proxy::Args),
    /// Copy files from and to containers
    Cp(changes::cp::Args),
    /// Put a container into a running pod, or a pod on a node
    Debug(changes::debug::Args),
    /// Show the programs that are commands by their names
    Plugin(commands::plugins::list::Args),
    /// Write the completions of a shell
    Completion(CompletionArgs),
}

/// Flags of `completion`.
#[derive(Debug, clap::Args)]
pub struct CompletionArgs {
    /// The shell
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

/// The command line that the program has, without its help. Of a flag that is given twice the last counts, so that scripts and aliases can be
/// followed by other values; lists collect all of theirs.
pub fn command_line() -> clap::Command {
    arguments::with_boolean_values(Arguments::command()).args_override_self(true)
}

/// Reads the command line.
pub fn parse(words: impl Iterator<Item = OsString>) -> Result<Arguments, clap::Error> {
    let command = help::with_help(command_line());
    let line = arguments::with_parts_first(&command, help_as_flag(words));
    let mut matches = command.try_get_matches_from(&line)?;
    let words = words_of(&matches);
    let mut parsed = Arguments::from_arg_matches_mut(&mut matches)?;
    parsed.words = words;
    if !parsed.flags.identity.impersonate_groups.is_empty() {
        parsed.flags.identity.impersonate_groups = arguments::groups(command_line(), line);
    }
    let names_users = match &parsed.command {
        Command::Create(create) => create.names_users(),
        Command::Set(set) => set.names_users(),
        _ => false,
    };
    if names_users {
        // The users that get a role are no user of the client configuration, though the flag has its name.
        parsed.flags.identity.user = None;
    }
    Ok(parsed)
}

fn words_of(matches: &clap::ArgMatches) -> String {
    let mut words = "orchctl".to_owned();
    let mut level = matches;
    while let Some((name, below)) = level.subcommand() {
        words = format!("{words} {name}");
        level = below;
    }
    words
}

/// `orchctl help COMMAND` means `orchctl COMMAND --help`.
fn help_as_flag(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    if words.get(1).is_some_and(|word| word == "help") {
        words.remove(1);
        words.push("--help".into());
    }
    words
}

/// The exit code when a command line is no valid one.
pub fn exit_code_of_usage(words: impl Iterator<Item = OsString>) -> u8 {
    let lenient = Arguments::command().ignore_errors(true).try_get_matches_from(words);
    let is_why = lenient.is_ok_and(|matches| matches.subcommand_name() == Some("why"));
    if is_why { commands::why::NO_ANSWER } else { 1 }
}

/// Runs a command.
pub async fn run(
    session: &Session,
    command: Command,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    match command {
        Command::Get(args) => get::run(session, args, output).await,
        Command::ApiResources(args) => api_resources::run(session, args, output).await,
        Command::ApiVersions(args) => api_versions::run(session, args, output).await,
        Command::Version(args) => version::run(session, args, output).await,
        Command::ClusterInfo(args) => commands::cluster_info::run(session, args, output).await,
        Command::Config(args) => commands::config::run(session, args, output).await,
        Command::Auth(args) => changes::auth::run(session, args, output).await,
        Command::Describe(args) => commands::describe::run(session, args, output).await,
        Command::Explain(args) => commands::explain::run(session, args, output).await,
        Command::Events(args) => commands::events::run(session, args, output).await,
        Command::Logs(args) => commands::logs::run(session, args, output).await,
        Command::Top(args) => commands::top::run(session, args, output).await,
        Command::Wait(args) => commands::wait::run(session, args, output).await,
        Command::Tree(args) => commands::tree::run(session, args, output).await,
        Command::Why(args) => commands::why::run(session, args, output).await,
        Command::Timeline(args) => commands::timeline::run(session, args, output).await,
        Command::Trace(args) => commands::trace::run(session, args, output).await,
        Command::Ui(args) => commands::ui::run(session, args, output).await,
        Command::Apply(args) => changes::apply::run(session, args, output).await,
        Command::Create(args) => changes::create::run(session, args, output).await,
        Command::Replace(args) => changes::replace::run(session, args, output).await,
        Command::Patch(args) => changes::patch::run(session, args, output).await,
        Command::Delete(args) => changes::delete::run(session, args, output).await,
        Command::Label(args) => changes::label::run_label(session, args, output).await,
        Command::Annotate(args) => changes::label::run_annotate(session, args, output).await,
        Command::Scale(args) => changes::scale::run(session, args, output).await,
        Command::Rollout(args) => changes::rollout::run(session, args, output).await,
        Command::Diff(args) => changes::diff::run(session, args, output).await,
        Command::Edit(args) => changes::edit::run(session, args, output).await,
        Command::Set(args) => changes::set::run(session, args, output).await,
        Command::Expose(args) => changes::expose::run_expose(session, args, output).await,
        Command::Autoscale(args) => changes::expose::run_autoscale(session, args, output).await,
        Command::Run(args) => changes::run::run(session, args, output).await,
        Command::Taint(args) => changes::taint::run(session, args, output).await,
        Command::Cordon(args) => changes::drain::run_cordon(session, args, output).await,
        Command::Uncordon(args) => changes::drain::run_uncordon(session, args, output).await,
        Command::Drain(args) => changes::drain::run_drain(session, args, output).await,
        Command::Certificate(args) => changes::certificate::run(session, args, output).await,
        Command::Exec(args) => changes::exec::run_exec(session, args, output).await,
        Command::Attach(args) => changes::exec::run_attach(session, args, output).await,
        Command::PortForward(args) => changes::port_forward::run(session, args, output).await,
        Command::Proxy(args) => changes::proxy::run(session, args, output).await,
        Command::Cp(args) => changes::cp::run(session, args, output).await,
        Command::Debug(args) => changes::debug::run(session, args, output).await,
        Command::Plugin(args) => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            commands::plugins::list::run(&args, &path, &command_line(), output)
        }
        Command::Completion(args) => {
            completion::write_script(&args.shell.to_string(), &mut output.out)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Arguments, clap::Error> {
        parse(line.split(' ').map(OsString::from))
    }

    #[test]
    fn every_command_is_well_formed() {
        command_line().debug_assert();
    }

    #[test]
    fn the_user_flag_of_rolebindings_is_not_that_of_the_client() {
        let parsed = read("orchctl create rolebinding r --role=a --user=x").expect("valid");
        assert_eq!(parsed.flags.identity.user, None);
        let parsed = read("orchctl create rolebinding r --role=a --group=x --context=c");
        assert_eq!(parsed.expect("valid").flags.context.as_deref(), Some("c"));
        let parsed = read("orchctl set subject rolebinding r --user=x --user=y").expect("valid");
        assert_eq!(parsed.flags.identity.user, None);
        let parsed = read("orchctl --user=x create namespace n").expect("valid");
        assert_eq!(parsed.flags.identity.user.as_deref(), Some("x"));
    }

    #[test]
    fn flags_may_stand_before_what_is_created() {
        for line in [
            "orchctl create -n q cm x",
            "orchctl -v 0 create --namespace q --dry-run=client deploy d --image i",
            "orchctl create --from-literal=a=b -n=q configmap x",
            "orchctl create -n q secret generic s",
            "orchctl apply -n q view-last-applied cm/x",
        ] {
            let parsed = read(line).expect(line);
            assert_eq!(parsed.flags.namespace.as_deref(), Some("q"), "{line}");
            assert!(parsed.words.split(' ').count() > 2, "{line}: {}", parsed.words);
        }
        // The name of a file.
        assert_eq!(read("orchctl create -f cm").expect("valid").words, "orchctl create");
        assert!(read("orchctl create -f a cm x").is_err());
    }

    #[test]
    fn groups_of_all_levels_count() {
        let groups = |line: &str| read(line).map(|parsed| parsed.flags.identity.impersonate_groups);
        for (line, wanted) in [
            ("get pods", &[][..]),
            ("--as-group=a get pods", &["a"]),
            ("get pods --as-group a --as-group=b", &["a", "b"]),
            ("--as-group=a --as-group b get pods --as-group c", &["a", "b", "c"]),
            (
                "--as-group=a rollout --as-group b status deploy/x --as-group=a -n n",
                &["a", "b", "a"],
            ),
            ("--as-group=a exec p --as-group=b -- sh --as-group=c", &["a", "b"]),
            ("help get --as-group=a", &[]),
        ] {
            let found = groups(&format!("orchctl {line}")).unwrap_or_default();
            assert_eq!(found, wanted, "{line}");
        }
    }

    #[test]
    fn only_the_why_command_has_an_exit_code_for_usage_errors() {
        let code = |line: &str| {
            assert!(read(line).is_err(), "{line}");
            exit_code_of_usage(line.split(' ').map(OsString::from))
        };
        assert_eq!(code("orchctl -n x why pod/a --nonsense"), 2);
        assert_eq!(code("orchctl get why --nonsense"), 1);
        assert_eq!(code("orchctl --nonsense"), 1);
    }

    #[test]
    fn commands_of_containers_need_no_dashes() {
        for line in
            ["orchctl exec p -c a ls /", "orchctl exec p ls / -c a", "orchctl exec p -c a -- ls /"]
        {
            assert!(read(line).is_ok(), "{line}");
        }
        for line in ["orchctl run p --image=i sleep 1", "orchctl run p -i sh --image=i -- -c x"] {
            assert!(read(line).is_ok(), "{line}");
        }
        assert!(read("orchctl exec p ls -l").is_err(), "whose flag that is cannot be known");
    }

    #[test]
    fn flags_have_their_names_of_1_25_and_before() {
        for line in [
            "orchctl drain n --delete-local-data=true --force",
            "orchctl apply -f x --prune --all --prune-whitelist=core/v1/ConfigMap",
            "orchctl set image deploy/web c=i:2 --record",
            "orchctl create deployment web --image=i --record=true",
            "orchctl apply -f x --record",
            "orchctl scale deploy/web --replicas=2 --record",
            "orchctl delete rs x --cascade=false",
            "orchctl replace -f x --force --cascade=true",
            "orchctl get pods --cache-dir=/tmp/x --disable-compression --disable-compression=false",
            "orchctl set env deploy/web --list",
        ] {
            assert!(read(line).is_ok(), "{line}");
        }
    }

    #[test]
    fn flags_have_the_forms_that_scripts_use() {
        let parsed = read("orchctl get pods -A -oyaml -n=x --insecure-skip-tls-verify=true -v=6");
        let parsed = parsed.expect("valid");
        assert_eq!(parsed.flags.server.insecure_skip_tls_verify, Some(true));
        assert_eq!(parsed.flags.namespace.as_deref(), Some("x"));
        assert_eq!(parsed.flags.verbosity, 6);
        let Command::Get(get) = parsed.command else { panic!("get") };
        assert!(get.all_namespaces);
        assert_eq!(get.print.output.as_deref(), Some("yaml"));
        let parsed = read("orchctl get pods -wA -n x").expect("valid");
        let Command::Get(get) = parsed.command else { panic!("get") };
        assert!(get.watch && get.all_namespaces);
    }

    #[test]
    fn the_last_of_a_flags_values_counts() {
        for (line, namespace, output, watch) in [
            ("orchctl get pods -n a -n b", "b", None, false),
            ("orchctl -n a get pods --namespace=b", "b", None, false),
            ("orchctl get pods -o wide -n a -o yaml", "a", Some("yaml"), false),
            ("orchctl get pods -n a --watch=false -w", "a", None, true),
            ("orchctl get pods -n a -w --watch=false", "a", None, false),
            ("orchctl get -w pods -n a -w", "a", None, true),
        ] {
            let parsed = read(line).expect(line);
            assert_eq!(parsed.flags.namespace.as_deref(), Some(namespace), "{line}");
            let Command::Get(get) = parsed.command else { panic!("get") };
            assert_eq!((get.print.output.as_deref(), get.watch), (output, watch), "{line}");
        }
        let line = "orchctl get pods -v 1 --kubeconfig a --kubeconfig=b -v=6 --request-timeout=1s --request-timeout=2s";
        let flags = read(line).expect(line).flags;
        assert_eq!((flags.verbosity, flags.request_timeout.as_str()), (6, "2s"));
        assert_eq!(flags.kubeconfig, Some("b".into()));
        for line in [
            "orchctl delete pod a --wait --wait=false --grace-period=1 --grace-period=2",
            "orchctl apply -f a --dry-run=client --dry-run=server --validate --validate=false",
            "orchctl run p --image=i --image=j --restart=Never --restart=Always",
            "orchctl rollout status deploy/a --timeout=1s --timeout=2s",
        ] {
            assert!(read(line).is_ok(), "{line}");
        }
    }

    #[test]
    fn lists_collect_the_values_of_all_their_flags() {
        let line = "orchctl apply -f a -f b,c --as=x --as=y --as-group=g --as-group=h";
        let parsed = read(line).expect(line);
        let identity = parsed.flags.identity;
        assert_eq!(identity.impersonate.as_deref(), Some("y"));
        assert_eq!(identity.impersonate_groups, ["g", "h"]);
        let line = "orchctl get pods a b -f x -f y";
        let Command::Get(get) = read(line).expect(line).command else { panic!("get") };
        assert_eq!(get.files.filename, ["x", "y"]);
    }
}
