//! The mode of the program: by the name under which it is called, and by its first argument.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::Path;

use apiserver_development::assets::{self, ETCD, KUBE_APISERVER};
use apiserver_development::kube_apiserver::{self, AdaptedArguments};
use proto_daemon::exit::Failure;

/// The mode.
#[derive(Debug, PartialEq, Eq)]
pub enum Invocation {
    Server {
        /// The program's name and its flags.
        arguments: Vec<OsString>,
        /// What the log says of flags that were given for another program.
        warnings: Vec<String>,
    },
    /// The stand-in for etcd, with these flags.
    Etcd(Vec<OsString>),
    /// Links to this program in a directory.
    Assets(Vec<OsString>),
}

/// `orch-apiserver assets` was not called with one directory.
#[derive(Debug, thiserror::Error)]
#[error("assets: expected one argument, the directory in which the links are made")]
struct AssetsUsage;

impl Invocation {
    /// Reads the arguments of the process, its name first.
    pub fn read(mut arguments: impl Iterator<Item = OsString>) -> Self {
        let own = arguments.next().unwrap_or_default();
        let rest: Vec<OsString> = arguments.collect();
        let name = Path::new(&own).file_name().unwrap_or_default();
        if name == ETCD {
            return Self::Etcd(rest);
        }
        if rest.first().is_some_and(|first| first == "assets") {
            return Self::Assets(rest.into_iter().skip(1).collect());
        }
        let given = if name == KUBE_APISERVER {
            kube_apiserver::adapt(&rest, Path::exists)
        } else {
            with_kubernetes_names(rest)
        };
        let arguments = std::iter::once(own).chain(given.arguments).collect();
        Self::Server { arguments, warnings: given.warnings }
    }
}

/// An ephemeral server is there for clients of Kubernetes, unless `--naming` says otherwise.
fn with_kubernetes_names(mut arguments: Vec<OsString>) -> AdaptedArguments {
    let named = |argument: &OsString| argument.as_encoded_bytes().starts_with(b"--naming");
    if arguments.iter().any(|argument| argument == "--ephemeral") && !arguments.iter().any(named) {
        arguments.push("--naming=kubernetes".into());
    }
    AdaptedArguments { arguments, warnings: Vec::new() }
}

/// Creates the links, and prints the environment variable by which a test harness finds them.
pub fn assets(arguments: &[OsString]) -> Result<(), Failure> {
    let [dir] = arguments else { return Err(Failure::usage(AssetsUsage)) };
    let program = std::env::current_exe().map_err(Failure::run)?;
    let path = std::env::var_os("PATH");
    let made = assets::link(Path::new(dir), &program, path.as_deref()).map_err(Failure::run)?;
    writeln!(io::stdout(), "KUBEBUILDER_ASSETS={}", made.display()).map_err(Failure::run)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Invocation {
        Invocation::read(arguments.iter().map(OsString::from))
    }

    fn server(arguments: &[&str]) -> Vec<OsString> {
        match read(arguments) {
            Invocation::Server { arguments, warnings } if warnings.is_empty() => arguments,
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn the_name_says_which_program_is_meant() {
        assert_eq!(read(&["/a/etcd", "--x"]), Invocation::Etcd(vec!["--x".into()]));
        assert_eq!(
            server(&["/a/kube-apiserver"])[1..],
            ["--ephemeral", "--naming=kubernetes", "--secure-port=6443"]
        );
        assert_eq!(server(&["orch-apiserver", "--v=1"])[1..], ["--v=1"]);
        let assets = read(&["orch-apiserver", "assets", "/d"]);
        assert_eq!(assets, Invocation::Assets(vec!["/d".into()]));
    }

    #[test]
    fn ephemeral_servers_have_the_names_of_kubernetes() {
        let given = ["orch-apiserver", "--ephemeral"];
        assert_eq!(server(&given)[1..], ["--ephemeral", "--naming=kubernetes"]);
        for naming in ["--naming=orch", "--naming"] {
            let given = ["orch-apiserver", "--ephemeral", naming, "orch"];
            assert_eq!(server(&given), given);
        }
    }
}
