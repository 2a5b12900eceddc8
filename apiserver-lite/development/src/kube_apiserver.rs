//! The arguments of kube-apiserver as those of an ephemeral server: what the program is called with under that name, by test harnesses.

use std::ffi::OsString;
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
pub struct Adapted {
    /// Without the program's name.
    pub arguments: Vec<OsString>,
    /// One text for each flag without effect.
    pub warnings: Vec<String>,
}

/// Adapts the arguments that follow the program's name: an ephemeral server with Kubernetes' names. `exists` tells of a file.
#[must_use]
pub fn adapt(given: &[OsString], exists: impl Fn(&Path) -> bool) -> Adapted {
    let mut adapted = Adapted::default();
    let has = |flag: &str| given.iter().any(|argument| is_flag(argument, flag));
    adapted.arguments.push("--ephemeral".into());
    if !has("naming") {
        adapted.arguments.push("--naming=kubernetes".into());
    }
    let mut rest = given.iter();
    while let Some(argument) = rest.next() {
        let plain = argument.to_string_lossy();
        let flag = plain.trim_start_matches('-');
        let (name, value) = flag.split_once('=').map_or((flag, None), |(n, v)| (n, Some(v)));
        let is_flag = plain.starts_with("--");
        if let Some((_, instead)) = WITHOUT_EFFECT.iter().find(|(of, _)| is_flag && *of == name) {
            adapted.warnings.push(format!("flag --{name} has no effect: {instead}"));
            if value.is_none() && !SWITCHES.contains(&name) {
                rest.next();
            }
            continue;
        }
        // Without certificates in it the directory is where they are written, as it is for this program.
        let directory = value.filter(|_| is_flag && name == "cert-dir" && !has("tls-cert-file"));
        if let Some(directory) = directory
            && let [certificate, key] =
                ["apiserver.crt", "apiserver.key"].map(|file| Path::new(directory).join(file))
            && exists(&certificate)
            && exists(&key)
        {
            adapted.arguments.push(of("--tls-cert-file=", &certificate));
            adapted.arguments.push(of("--tls-private-key-file=", &key));
            continue;
        }
        adapted.arguments.push(argument.clone());
    }
    adapted
}

fn is_flag(argument: &OsString, flag: &str) -> bool {
    let text = argument.to_string_lossy();
    let name = text.strip_prefix("--").and_then(|text| text.split('=').next());
    name == Some(flag)
}

fn of(flag: &str, path: &Path) -> OsString {
    let mut argument = OsString::from(flag);
    argument.push(path);
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
        assert_eq!(
            (arguments, warnings.len()),
            (vec!["--ephemeral".into(), "--naming=orch".into(), "--unknown=1".to_owned()], 0)
        );
    }

    #[test]
    fn certificates_of_the_directory_are_shown() {
        let there = ["/c/apiserver.crt", "/c/apiserver.key"];
        let adapted = |given: &[&str], there: &[&str]| adapt_all(given, there).0.split_off(2);
        assert_eq!(
            adapted(&["--cert-dir=/c"], &there),
            ["--tls-cert-file=/c/apiserver.crt", "--tls-private-key-file=/c/apiserver.key"]
        );
        assert_eq!(adapted(&["--cert-dir=/c"], &there[..1]), ["--cert-dir=/c"]);
        let given = ["--cert-dir=/c", "--tls-cert-file=/x"];
        assert_eq!(adapted(&given, &there), given);
    }
}
