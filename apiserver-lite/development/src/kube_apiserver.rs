//! The arguments of kube-apiserver as those of an ephemeral server: what the program is called with under that name, by test harnesses.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// The flags of kube-apiserver that mean nothing here, each with what is so instead. They are taken away, and the log names them.
const WITHOUT_EFFECT: [(&str, &str); 21] = [
    ("etcd-servers", MEMORY),
    ("etcd-servers-overrides", MEMORY),
    ("etcd-prefix", MEMORY),
    ("etcd-cafile", MEMORY),
    ("etcd-certfile", MEMORY),
    ("etcd-keyfile", MEMORY),
    ("etcd-compaction-interval", MEMORY),
    ("etcd-count-metric-poll-period", MEMORY),
    ("etcd-db-metric-poll-interval", MEMORY),
    ("etcd-healthcheck-timeout", MEMORY),
    ("storage-backend", MEMORY),
    ("storage-media-type", MEMORY),
    ("watch-cache", WATCHES),
    ("watch-cache-sizes", WATCHES),
    ("default-watch-cache-size", WATCHES),
    ("profiling", PROFILES),
    ("contention-profiling", PROFILES),
    ("logtostderr", LOGS),
    ("alsologtostderr", LOGS),
    ("stderrthreshold", LOGS),
    ("vmodule", LOGS),
];
const MEMORY: &str = "objects are kept in the memory of this process";
const WATCHES: &str = "watches are served from the store";
const PROFILES: &str = "there are no profiles";
const LOGS: &str = "the log goes to standard error";
/// Those of them that may stand without a value.
const SWITCHES: [&str; 5] =
    ["watch-cache", "profiling", "contention-profiling", "logtostderr", "alsologtostderr"];

/// The arguments of this program, and what the log says of those that are not among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdaptedArguments {
    /// Without the program's name.
    pub arguments: Vec<OsString>,
    /// One text for each flag without effect.
    pub warnings: Vec<String>,
}

/// Adapts the arguments that follow the program's name: an ephemeral server with Kubernetes' names and kube-apiserver's port. `exists` returns whether a
/// file exists.
#[must_use]
pub fn adapt(given: &[OsString], exists: impl Fn(&Path) -> bool) -> AdaptedArguments {
    let has = |flag: &str| given.iter().any(|argument| Argument::parse(argument).is(flag));
    let mut adapted = AdaptedArguments::default();
    adapted.arguments.push("--ephemeral".into());
    for (flag, default) in [("naming", "kubernetes"), ("secure-port", "6443")] {
        if !has(flag) {
            adapted.arguments.push(format!("--{flag}={default}").into());
        }
    }
    let (mut directory, mut range) = (None, None);
    let mut rest = given.iter();
    while let Some(argument) = rest.next() {
        let read = Argument::parse(argument);
        if let Some((name, instead)) = WITHOUT_EFFECT.iter().find(|(name, _)| read.is(name)) {
            adapted.warnings.push(format!("flag --{name} has no effect: {instead}"));
            if read.value.is_none() && !SWITCHES.contains(name) {
                rest.next();
            }
            continue;
        }
        // A value may stand alone. What comes later is in the place of what came before.
        let (is_directory, is_range) = (read.is(CERT_DIR), read.is(SERVICE_RANGE));
        let value = if is_directory || is_range {
            read.value.or_else(|| rest.next().cloned())
        } else {
            None
        };
        match value {
            Some(value) if is_directory => directory = Some(value),
            Some(value) => range = Some(value),
            None => adapted.arguments.push(argument.clone()),
        }
    }
    adapted.arguments.extend(range.map(|range| flag(SERVICE_RANGE, &range)));
    if let Some(directory) = directory {
        let shown = if has(TLS_CERTIFICATE) { None } else { pair_in(&directory, exists) };
        adapted.arguments.extend(shown.unwrap_or_else(|| vec![flag(CERT_DIR, &directory)]));
    }
    adapted
}

const CERT_DIR: &str = "cert-dir";
const TLS_CERTIFICATE: &str = "tls-cert-file";
/// A list of this program: given twice it would be joined.
const SERVICE_RANGE: &str = "service-cluster-ip-range";

/// The flags that show the certificate of a directory. Without one in it the directory is where they are written, as it is for this program.
fn pair_in(directory: &OsStr, exists: impl Fn(&Path) -> bool) -> Option<Vec<OsString>> {
    let files = ["apiserver.crt", "apiserver.key"].map(|file| Path::new(directory).join(file));
    let [certificate, key] = &files;
    let flags = || {
        let certificate = flag(TLS_CERTIFICATE, certificate.as_os_str());
        vec![certificate, flag("tls-private-key-file", key.as_os_str())]
    };
    files.iter().all(|file| exists(file)).then(flags)
}

/// An argument as a flag, if it is one.
struct Argument {
    name: Option<String>,
    /// What follows `=`.
    value: Option<OsString>,
}

impl Argument {
    fn parse(argument: &OsStr) -> Self {
        let bytes = argument.as_bytes();
        let Some(flag) = bytes.strip_prefix(b"--") else { return Self { name: None, value: None } };
        let end = flag.iter().position(|byte| *byte == b'=');
        let name = flag.get(..end.unwrap_or(flag.len())).unwrap_or_default();
        let value = end.and_then(|end| flag.get(end.saturating_add(1)..));
        Self {
            name: Some(String::from_utf8_lossy(name).into_owned()),
            value: value.map(|value| OsStr::from_bytes(value).to_owned()),
        }
    }

    fn is(&self, flag: &str) -> bool {
        self.name.as_deref() == Some(flag)
    }
}

fn flag(name: &str, value: &OsStr) -> OsString {
    let mut argument = OsString::from(format!("--{name}="));
    argument.push(value);
    argument
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapt_all(given: &[&str], there: &[&str]) -> (Vec<String>, Vec<String>) {
        let given: Vec<OsString> = given.iter().map(OsString::from).collect();
        let adapted = adapt(&given, |path| there.contains(&path.to_str().unwrap()));
        let arguments = adapted.arguments.into_iter().map(|text| text.into_string().unwrap());
        (arguments.collect(), adapted.warnings)
    }

    #[test]
    fn flags_act_or_are_named() {
        let (arguments, warnings) = adapt_all(
            &[
                "--etcd-servers",
                "http://127.0.0.1:1",
                "--watch-cache",
                "--secure-port=2",
                "--vmodule=a=1",
            ],
            &[],
        );
        assert_eq!(arguments, ["--ephemeral", "--naming=kubernetes", "--secure-port=2"]);
        assert_eq!(warnings.len(), 3);
        assert!(warnings[0].contains("--etcd-servers") && warnings[0].contains(MEMORY));
        let (arguments, warnings) = adapt_all(&["--naming=orch", "--unknown=1"], &[]);
        let expected = ["--ephemeral", "--secure-port=6443", "--naming=orch", "--unknown=1"];
        assert_eq!((arguments, warnings.len()), (expected.map(str::to_owned).to_vec(), 0));
    }

    #[test]
    fn values_may_stand_alone_and_the_last_counts() {
        let there = ["/c/apiserver.crt", "/c/apiserver.key"];
        let adapted = |given: &[&str]| adapt_all(given, &there).0.split_off(3);
        let shown = ["--tls-cert-file=/c/apiserver.crt", "--tls-private-key-file=/c/apiserver.key"];
        assert_eq!(adapted(&["--cert-dir", "/c"]), shown);
        assert_eq!(adapted(&["--cert-dir=/other", "--cert-dir=/c"]), shown);
        assert_eq!(adapted(&["--cert-dir=/c", "--cert-dir", "/other"]), ["--cert-dir=/other"]);
        let ranges = ["--service-cluster-ip-range=10.0.0.0/24", "--service-cluster-ip-range"];
        let given = [&ranges[..], &["10.1.0.0/24", "--v=1"]].concat();
        assert_eq!(adapted(&given), ["--v=1", "--service-cluster-ip-range=10.1.0.0/24"]);
        assert_eq!(adapted(&["--cert-dir"]), ["--cert-dir"], "refused later");
    }

    #[test]
    fn certificates_of_the_directory_are_shown() {
        let there = ["/c/apiserver.crt", "/c/apiserver.key"];
        let adapted = |given: &[&str], there: &[&str]| adapt_all(given, there).0.split_off(3);
        assert_eq!(
            adapted(&["--cert-dir=/c"], &there),
            ["--tls-cert-file=/c/apiserver.crt", "--tls-private-key-file=/c/apiserver.key"]
        );
        assert_eq!(adapted(&["--cert-dir=/c"], &there[..1]), ["--cert-dir=/c"]);
        let given = ["--tls-cert-file=/x", "--cert-dir=/c"];
        assert_eq!(adapted(&given, &there), given);
    }
}
