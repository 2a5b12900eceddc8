//! Pages of many objects beside those of kubectl 1.27: `pages.txt` has what it prints of the objects of `pages.json`, each below a line with its kind and name.

use serde_json::Value;

use super::super::*;
use super::text;

const OBJECTS: &str = include_str!("pages.json");
const PAGES: &str = include_str!("pages.txt");

/// Lines that only kubectl prints, or only this program: page, kubectl's, ours, and why.
const DIFFERENCES: &[(&str, &str, &str, &str)] = &[
    (
        "Pod web",
        "LABEL: (v1:metadata.labels['app'])",
        "LABEL: x (v1:metadata.labels['app'])",
        "kubectl does not know the value",
    ),
    ("PersistentVolumeClaim data", "Events: <none>", "", "events were not asked for"),
    ("PersistentVolumeClaim free", "Events: <none>", "", "events were not asked for"),
    ("Job job", "", "Suspend: true", "newer kubectl says it"),
    ("Job job", "", "Backoff Limit: 4", "newer kubectl says it"),
    ("Job job", "", "TTL Seconds After Finished: 60", "newer kubectl says it"),
    ("CronJob cj", "", "Time Zone: Europe/Rome", "the schedule means nothing without it"),
    ("Service lb", "IP: 8.8.8.8", "Desired LoadBalancer IP: 8.8.8.8", "as newer kubectl"),
    ("Service lb", "", "Internal Traffic Policy: Local", "newer kubectl says it"),
    ("NetworkPolicy np", "To Port: 8000/UDP", "To Port Range: 8000-9000/UDP", "as newer kubectl"),
];

/// What belongs to an object, as the command would have read it.
fn related(page: &Value) -> Related {
    let of_kind = |kind: &str| -> Vec<Value> {
        let all = objects::list_at(page, "/related").iter();
        all.filter(|one| one["kind"] == kind).cloned().collect()
    };
    let endpoints = of_kind("Endpoints").pop();
    let missing = "/api/v1/namespaces/shop/endpoints/missing not found";
    let mut backends = BTreeMap::from([("missing".to_owned(), Err(Unread(missing.to_owned())))]);
    if let (Some(service), Some(endpoints)) = (of_kind("Service").pop(), endpoints.clone()) {
        let name = objects::name(&service).to_owned();
        backends.insert(name, Ok(ServiceWithEndpoints { service, endpoints }));
    }
    Related {
        pods: of_kind("Pod"),
        replica_sets: of_kind("ReplicaSet"),
        endpoints,
        lease: of_kind("Lease").pop().map(Ok),
        backends,
        ..Related::default()
    }
}

/// The lines with their depth; columns are as wide as what they hold.
fn lines(page: &str) -> Vec<String> {
    let line = |line: &str| {
        let depth = line.len() - line.trim_start().len();
        // Columns below a title begin where its own do.
        let depth = depth.min(10);
        let words: Vec<&str> = line.split_whitespace().collect();
        format!("{}{}", " ".repeat(depth), words.join(" "))
    };
    page.lines().map(line).filter(|line| !line.is_empty()).collect()
}

#[test]
fn pages_are_those_of_kubectl() {
    let objects: Vec<Value> = serde_json::from_str(OBJECTS).expect("objects");
    let mut theirs: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for page in PAGES.split("#### ").skip(1) {
        let (title, page) = page.split_once('\n').expect("a title");
        theirs.insert(title, lines(page));
    }
    assert_eq!(theirs.len(), objects.len());
    let mut wrong = Vec::new();
    let mut unused: Vec<_> = DIFFERENCES.iter().collect();
    for page in &objects {
        let object = &page["object"];
        let title = format!("{} {}", objects::text_at(object, "/kind"), objects::name(object));
        let mut expected = theirs.remove(title.as_str()).expect("a page of kubectl");
        let shown = text(object, &related(page));
        let mut ours = lines(&shown);
        unused.retain(|(of, their, our, _)| {
            let without = |all: &mut Vec<String>, text: &str| {
                let at = all.iter().position(|line| line.trim_start() == text);
                text.is_empty() || at.map(|at| all.remove(at)).is_some()
            };
            *of != title || !without(&mut expected, their) || !without(&mut ours, our)
        });
        if ours != expected {
            wrong.push(format!("{title}\n{shown}\nis not\n{}\n", expected.join("\n")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(unused, Vec::<&(&str, &str, &str, &str)>::new());
}

/// What newer kubectl says of templates, too.
#[test]
fn a_template_shows_where_its_pods_may_be() {
    let spec = serde_json::json!({"nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "x", "operator": "Exists"}],
        "topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]});
    let object = serde_json::json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "r"}, "spec": {"template": {"spec": spec}}});
    let shown = text(&object, &Related::default());
    let tail: Vec<&str> = shown.lines().rev().take(3).map(str::trim).collect();
    assert_eq!(
        tail,
        [
            "Tolerations:                  x op=Exists",
            "Node-Selectors:               disk=ssd",
            "Topology Spread Constraints:  zone:DoNotSchedule when max skew 1 is exceeded",
        ]
    );
}
