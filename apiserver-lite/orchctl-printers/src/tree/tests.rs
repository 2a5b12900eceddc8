//! Trees of members, as text.

use serde_json::json;

use super::*;

/// `Kind/name` or `Kind/namespace/name`, and the names of its owners; the name is the UID.
fn member(text: &str, owners: &[&str]) -> TreeObject {
    let parts: Vec<&str> = text.split('/').collect();
    let (kind, namespace, name) = match parts[..] {
        [kind, name] => (kind, "", name),
        [kind, namespace, name] => (kind, namespace, name),
        _ => panic!("{text}"),
    };
    let owner = |name: &&str| TreeOwner {
        api_version: "v1".into(),
        kind: "K".into(),
        name: (*name).into(),
        uid: (*name).into(),
    };
    TreeObject {
        api_version: "v1".into(),
        kind: kind.into(),
        namespace: namespace.into(),
        name: name.into(),
        uid: name.into(),
        owners: owners.iter().map(owner).collect(),
    }
}

fn lines(members: &[(&str, &[&str])], asked: &str) -> Vec<String> {
    let members = members.iter().map(|(text, owners)| member(text, owners)).collect();
    let absent = HashMap::from([("forbidden".to_owned(), "may not be read".to_owned())]);
    let line = |line: Line| {
        let note = Some(line.note).filter(|note| !note.is_empty());
        let note = note.map(|note| format!(" ({note})")).unwrap_or_default();
        format!("{}{}/{}{note}", line.branch, line.member.kind, line.member.name)
    };
    build(members, asked, &absent).into_iter().map(line).collect()
}

type Case<'a> = (&'a str, &'a [(&'a str, &'a [&'a str])], &'a str, &'a [&'a str]);

#[test]
fn trees_have_owners_above_and_dependents_below() {
    let app: &[(&str, &[&str])] = &[
        ("Deployment/n/web", &[]),
        ("ReplicaSet/n/web-1", &["web"]),
        ("ReplicaSet/n/web-2", &["web"]),
        ("Pod/n/p1", &["web-1"]),
        ("Pod/n/p2", &["web-1"]),
        ("Pod/n/p3", &["web-2"]),
        ("Pod/n/other", &[]),
    ];
    let cases: &[Case<'_>] = &[
        (
            "from the top",
            app,
            "web",
            &[
                "Deployment/web",
                "├─ReplicaSet/web-1",
                "│ ├─Pod/p1",
                "│ └─Pod/p2",
                "└─ReplicaSet/web-2",
                "  └─Pod/p3",
            ],
        ),
        (
            "above only what leads there",
            app,
            "web-1",
            &["Deployment/web", "└─ReplicaSet/web-1", "  ├─Pod/p1", "  └─Pod/p2"],
        ),
        ("alone", app, "other", &["Pod/other"]),
        ("of no object", app, "nothing", &[]),
        (
            "two owners",
            &[("A/a", &[]), ("B/b", &[]), ("C/c", &["a", "b", "a"]), ("D/d", &["c"])],
            "c",
            &["A/a", "└─C/c", "  └─D/d", "B/b", "└─C/c (drawn above)"],
        ),
        (
            "a diamond below",
            &[
                ("A/a", &[]),
                ("B/b", &["a"]),
                ("B/c", &["a"]),
                ("D/d", &["b", "c"]),
                ("E/e", &["d"]),
            ],
            "a",
            &["A/a", "├─B/b", "│ └─D/d", "│   └─E/e", "└─B/c", "  └─D/d (drawn above)"],
        ),
    ];
    for (what, members, asked, wanted) in cases {
        assert_eq!(lines(members, asked), *wanted, "{what}");
    }
}

#[test]
fn missing_owners_and_ownership_cycles_are_shown() {
    let cases: &[Case<'_>] = &[
        ("its own owner", &[("A/a", &["a"])], "a", &["A/a", "└─A/a (a cycle: it is above)"]),
        (
            "a cycle with the object",
            &[("A/a", &["b"]), ("B/b", &["a"])],
            "a",
            &["B/b", "└─A/a", "  └─B/b (a cycle: it is above)"],
        ),
        (
            "a cycle above the object",
            &[("A/a", &["b"]), ("B/b", &["c"]), ("C/c", &["b"])],
            "a",
            &["C/c", "└─B/b", "  ├─A/a", "  └─C/c (a cycle: it is above)"],
        ),
        (
            "a cycle below the object",
            &[("A/a", &[]), ("B/b", &["a", "c"]), ("C/c", &["b"])],
            "a",
            &["A/a", "└─B/b", "  └─C/c", "    └─B/b (a cycle: it is above)"],
        ),
        (
            "an owner that is not there",
            &[("A/n/a", &["gone", "forbidden"]), ("B/n/b", &["a", "gone"])],
            "a",
            &["K/gone", "└─A/a", "  └─B/b", "K/forbidden (may not be read)", "└─A/a (drawn above)"],
        ),
        (
            "an owner in another namespace",
            &[("A/one/a", &[]), ("B/two/b", &["a"]), ("C/two/c", &["b"])],
            "b",
            &["A/a", "└─B/b (does not count: its owner is in namespace one)", "  └─C/c"],
        ),
        (
            "an owner without a namespace",
            &[("Node/n1", &[]), ("Pod/one/a", &["n1"]), ("Pod/two/b", &["n1"])],
            "n1",
            &["Node/n1", "├─Pod/a", "└─Pod/b"],
        ),
    ];
    for (what, members, asked, wanted) in cases {
        assert_eq!(lines(members, asked), *wanted, "{what}");
    }
}

#[test]
fn trees_are_bounded() {
    let names: Vec<String> = (0..LINES_MAX + 10).map(|at| format!("K/{at}")).collect();
    let wide: Vec<TreeObject> = names.iter().map(|name| member(name, &["top"])).collect();
    let wide = wide.into_iter().chain([member("A/top", &[])]).collect();
    let lines = build(wide, "top", &HashMap::new());
    assert_eq!(lines.len(), LINES_MAX + 1);
    assert!(lines.last().expect("lines").note.contains("not drawn"));
    let chain: Vec<TreeObject> = (1..=DEPTH_MAX + 10)
        .map(|at| member(&format!("K/{at}"), &[(at - 1).to_string().as_str()]))
        .chain([member("K/0", &[])])
        .collect();
    let lines = build(chain, "0", &HashMap::new());
    assert_eq!(lines.len(), DEPTH_MAX + 1);
    assert_eq!(lines.last().expect("lines").note, "what is below is not drawn");
}

#[test]
fn lines_show_what_is_ready_and_the_age() {
    let object = |kind: &str, created: &str| {
        json!({"kind": kind, "apiVersion": "apps/v1", "metadata": {"creationTimestamp": created},
        "spec": {"replicas": 2}, "status": {"readyReplicas": 1}})
    };
    let members = vec![member("ReplicaSet/n/a", &["gone"]), member("Pod/n/p", &["a"])];
    let absent = HashMap::from([("gone".to_owned(), "does not exist".to_owned())]);
    let lines = build(members, "a", &absent);
    let read = HashMap::from([("a".to_owned(), object("ReplicaSet", "1970-01-01T00:00:10Z"))]);
    assert_eq!(
        render(&lines, &read, 40),
        "NAME             READY   STATUS           AGE\n\
         K/gone                   does not exist\n\
         └─ReplicaSet/a   1/2                      30s\n  \
           └─Pod/p\n"
    );
}
