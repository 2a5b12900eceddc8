//! What completes the word at the cursor of a command line: types, names of objects, names of the client configuration.

/// Where the words come from that complete a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Candidates {
    /// The types that the server serves.
    Types,
    /// The objects of a type but those that are `given`, each with `prefix` in front.
    Names { type_word: String, prefix: String, given: Vec<String> },
    /// The containers of a pod.
    Containers { pod: String },
    /// A list of the client configuration: `contexts`, `clusters` or `users`.
    Configured(&'static str),
}

/// Commands whose arguments are TYPE NAME... or TYPE/NAME.
const OF_OBJECTS: [&[&str]; 29] = [
    &["get"],
    &["describe"],
    &["delete"],
    &["edit"],
    &["label"],
    &["annotate"],
    &["patch"],
    &["scale"],
    &["autoscale"],
    &["expose"],
    &["wait"],
    &["why"],
    &["tree"],
    &["trace"],
    &["taint"],
    &["rollout", "status"],
    &["rollout", "history"],
    &["rollout", "undo"],
    &["rollout", "pause"],
    &["rollout", "resume"],
    &["rollout", "restart"],
    &["set", "image"],
    &["set", "env"],
    &["set", "resources"],
    &["set", "selector"],
    &["set", "serviceaccount"],
    &["apply", "view-last-applied"],
    &["apply", "edit-last-applied"],
    &["timeline"],
];

/// Commands whose argument is a pod or another object with pods.
const OF_PODS: [&[&str]; 6] =
    [&["logs"], &["exec"], &["attach"], &["port-forward"], &["debug"], &["top", "pod"]];

/// Commands whose arguments are names of one type.
const OF_TYPE: [(&[&str], &str); 6] = [
    (&["cordon"], "nodes"),
    (&["uncordon"], "nodes"),
    (&["drain"], "nodes"),
    (&["top", "node"], "nodes"),
    (&["certificate", "approve"], "certificatesigningrequests"),
    (&["certificate", "deny"], "certificatesigningrequests"),
];

/// Commands whose first argument is in a list of the client configuration.
const OF_CONFIGURATION: [(&[&str], &str); 8] = [
    (&["config", "use-context"], "contexts"),
    (&["config", "get-contexts"], "contexts"),
    (&["config", "set-context"], "contexts"),
    (&["config", "rename-context"], "contexts"),
    (&["config", "delete-context"], "contexts"),
    (&["config", "set-cluster"], "clusters"),
    (&["config", "delete-cluster"], "clusters"),
    (&["config", "delete-user"], "users"),
];

/// What completes `current`, an argument of `command` behind those `before` it; `None` where nothing of a cluster does.
pub fn of_argument(command: &[&str], before: &[String], current: &str) -> Option<Candidates> {
    let named = |type_word: &str, prefix: String, given: &[String]| {
        Some(Candidates::Names { type_word: type_word.to_owned(), prefix, given: given.to_vec() })
    };
    if let Some((_, type_word)) = OF_TYPE.iter().find(|(of, _)| *of == command) {
        return named(type_word, String::new(), before);
    }
    if let (Some((_, list)), true) =
        (OF_CONFIGURATION.iter().find(|(of, _)| *of == command), before.is_empty())
    {
        return Some(Candidates::Configured(list));
    }
    let takes_pod = OF_PODS.contains(&command);
    if !takes_pod && !OF_OBJECTS.contains(&command) {
        return (command == ["explain"] && before.is_empty() && !current.contains('.'))
            .then_some(Candidates::Types);
    }
    match (before, current.split_once('/')) {
        ([], Some((type_word, _))) => named(type_word, format!("{type_word}/"), &[]),
        ([], None) if takes_pod => named("pods", String::new(), &[]),
        ([], None) => Some(Candidates::Types),
        ([type_word, given @ ..], _) if !takes_pod && !type_word.contains(['/', ',']) => {
            named(type_word, String::new(), given)
        }
        _ => None,
    }
}

/// What completes the value of a flag of `command`, which has the arguments `before`; `None` where nothing of a cluster does.
pub fn of_flag(command: &[&str], flag: &str, before: &[String]) -> Option<Candidates> {
    // Users, groups and namespaces of a role binding are those of its subjects.
    let is_of_client = command.first() != Some(&"create");
    match (flag, before) {
        ("namespace", _) => Some(Candidates::Names {
            type_word: "namespaces".to_owned(),
            prefix: String::new(),
            given: Vec::new(),
        }),
        ("context", _) => Some(Candidates::Configured("contexts")),
        ("cluster", _) => Some(Candidates::Configured("clusters")),
        ("user", _) if is_of_client => Some(Candidates::Configured("users")),
        ("container", [pod, ..]) if OF_PODS.contains(&command) => {
            let pod = pod.strip_prefix("pod/").or_else(|| pod.strip_prefix("pods/")).unwrap_or(pod);
            (!pod.contains('/')).then(|| Candidates::Containers { pod: pod.to_owned() })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<&str> {
        text.split(' ').filter(|word| !word.is_empty()).collect()
    }

    fn shown(candidates: Option<Candidates>) -> String {
        match candidates {
            None => "-".to_owned(),
            Some(Candidates::Types) => "types".to_owned(),
            Some(Candidates::Names { type_word, prefix, given }) => {
                format!("{type_word} {prefix} {}", given.join(",")).trim_end().to_owned()
            }
            Some(Candidates::Containers { pod }) => format!("containers of {pod}"),
            Some(Candidates::Configured(list)) => list.to_owned(),
        }
    }

    #[test]
    fn arguments_are_types_then_names() {
        for (command, before, current, expected) in [
            ("get", "", "po", "types"),
            ("get", "", "deploy/we", "deploy deploy/"),
            ("get", "pods", "", "pods"),
            ("get", "pods a", "", "pods  a"),
            ("get", "pods,svc", "", "-"),
            ("get", "pod/a", "", "-"),
            ("rollout status", "deploy", "", "deploy"),
            ("logs", "", "", "pods"),
            ("logs", "", "job/", "job job/"),
            ("logs", "a", "", "-"),
            ("exec", "a", "", "-"),
            ("drain", "n1", "", "nodes  n1"),
            ("top node", "", "", "nodes"),
            ("explain", "", "po", "types"),
            ("explain", "", "pods.sp", "-"),
            ("config use-context", "", "", "contexts"),
            ("config rename-context", "a", "", "-"),
            ("certificate approve", "", "", "certificatesigningrequests"),
            ("apply", "", "", "-"),
            ("rollout", "", "", "-"),
        ] {
            let before: Vec<String> = words(before).into_iter().map(str::to_owned).collect();
            let found = of_argument(&words(command), &before, current);
            assert_eq!(shown(found), expected, "{command} {before:?} {current}");
        }
    }

    #[test]
    fn values_of_flags_are_those_of_the_cluster_and_the_configuration() {
        for (command, flag, before, expected) in [
            ("get", "namespace", "pods", "namespaces"),
            ("get", "context", "", "contexts"),
            ("get", "user", "", "users"),
            ("create rolebinding", "user", "", "-"),
            ("logs", "container", "", "-"),
            ("logs", "container", "a", "containers of a"),
            ("exec", "container", "pod/a", "containers of a"),
            ("logs", "container", "job/a", "-"),
            ("set image", "container", "a", "-"),
            ("get", "selector", "", "-"),
        ] {
            let before: Vec<String> = words(before).into_iter().map(str::to_owned).collect();
            let found = of_flag(&words(command), flag, &before);
            assert_eq!(shown(found), expected, "{command} --{flag} {before:?}");
        }
    }
}
