//! pure: cases that are about requests and not about one field: names, content types, queries, versions of objects, deletion, lists, scale.

use http::Method;
use serde_json::{Value as Json, json};

use crate::case::{Case, JSON, Pair};
use crate::resource::{BOTH, Resource, Whose};

/// Names, most of them wrong.
const NAMES: [&str; 14] = [
    "",
    ".",
    "..",
    "a/b",
    "a%b",
    "A",
    "a_b",
    "-a",
    "a.",
    "a..b",
    "a b",
    "a:b",
    "1",
    "a-very-long-name",
];

/// Adds cases of one resource.
struct Cases<'a> {
    resource: &'a Resource,
    found: Vec<Case>,
}

impl<'a> Cases<'a> {
    fn new(resource: &'a Resource) -> Self {
        Self { resource, found: Vec::new() }
    }

    fn add(&mut self, operation: &'static str, field: &str, value: &str, pair: Pair) {
        self.steps(operation, field, value, vec![pair]);
    }

    fn steps(&mut self, operation: &'static str, field: &str, value: &str, steps: Vec<Pair>) {
        self.found.push(Case {
            resource: self.resource.plural.clone(),
            operation,
            field: field.to_owned(),
            value: value.to_owned(),
            definition: Some(self.resource.definition.clone()),
            steps,
        });
    }

    /// A valid object with changed metadata.
    fn create(&mut self, field: &str, value: &str, change: impl Fn(&mut Json)) {
        let objects = BOTH.map(|whose| {
            let mut object = self.resource.object(whose, "new");
            change(&mut object);
            object
        });
        let pair =
            Pair::new(Method::POST, |whose| format!("{}?dryRun=All", self.resource.path(whose)));
        self.add("create", field, value, pair.json(&objects));
    }
}

/// Creates whose names, namespaces or kinds are wrong.
pub fn names(resource: &Resource) -> Vec<Case> {
    let mut cases = Cases::new(resource);
    for name in NAMES {
        cases.create("metadata.name", name, |object| object["metadata"]["name"] = json!(name));
    }
    let long = "a".repeat(254);
    cases.create("metadata.name", "254 letters", |object| object["metadata"]["name"] = json!(long));
    for prefix in ["ok-", "Not Valid-", "x."] {
        cases.create("metadata.generateName", prefix, |object| {
            object["metadata"] = json!({"generateName": prefix});
        });
    }
    cases.create("metadata", "none", |object| object["metadata"] = json!({}));
    for namespace in ["other", "Not Valid", ""] {
        cases.create("metadata.namespace", namespace, |object| {
            object["metadata"]["namespace"] = json!(namespace);
        });
    }
    cases.create("metadata.resourceVersion", "1", |object| {
        object["metadata"]["resourceVersion"] = json!("1");
    });
    cases.create("metadata.uid", "set", |object| object["metadata"]["uid"] = json!("a"));
    cases.create("metadata.ownerReferences", "no uid", |object| {
        object["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Pod", "name": "a"}]);
    });
    cases.create("metadata.ownerReferences", "two controllers", |object| {
        let owner = |uid: &str| {
            json!({"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": uid, "controller": true})
        };
        object["metadata"]["ownerReferences"] = json!([owner("a"), owner("b")]);
    });
    for finalizer in ["a", "Not Valid", "example.com/a", "orphan"] {
        cases.create("metadata.finalizers", finalizer, |object| {
            object["metadata"]["finalizers"] = json!([finalizer]);
        });
    }
    cases.create("kind", "another", |object| object["kind"] = json!("Other"));
    cases.create("kind", "none", |object| object["kind"] = json!(""));
    cases.create("apiVersion", "another", |object| object["apiVersion"] = json!("a/v1"));
    cases.create("apiVersion", "none", |object| object["apiVersion"] = json!(""));
    cases.found
}

/// Content types, forms of answers and bodies.
pub fn bodies(resource: &Resource) -> Vec<Case> {
    let mut cases = Cases::new(resource);
    let objects = BOTH.map(|whose| resource.object(whose, "new"));
    let post = || Pair::new(Method::POST, |whose| format!("{}?dryRun=All", resource.path(whose)));
    for content_type in [
        "text/plain",
        "application/xml",
        "application/json;a=b",
        "",
        "application/vnd.kubernetes.protobuf",
    ] {
        cases.add("content type", "POST", content_type, post().json(&objects).of(content_type));
    }
    for accept in
        ["text/html", "application/yaml", "*/*", "application/*", "application/json;as=Table", "a"]
    {
        // A table's cells are compared by other tests.
        let operation = if accept.contains("Table") { "accept of a write" } else { "accept" };
        cases.add(operation, "POST", accept, post().json(&objects).accepting(accept));
    }
    let bodies: [&'static [u8]; 8] =
        [b"", b"{", b"[]", b"null", b"\"a\"", b"{\"a\":1}", b"{}{}", b"\xff\xfe"];
    for body in bodies {
        let label = String::from_utf8_lossy(body).into_owned();
        cases.add("body", "POST", &label, post().raw(body));
        if resource.is_stored {
            let name = resource.name(crate::LIVE);
            let at = |whose| format!("{}?dryRun=All", resource.path_of(whose, name));
            cases.add("body", "PUT", &label, Pair::new(Method::PUT, at).raw(body));
            for kind in PATCHES {
                let pair = Pair::new(Method::PATCH, at).raw(body).of(kind);
                cases.add("body", kind, &label, pair);
            }
        }
    }
    for kind in [JSON, "text/plain", "application/apply-patch", ""] {
        if resource.is_stored {
            let name = resource.name(crate::LIVE);
            let at = |whose| format!("{}?dryRun=All", resource.path_of(whose, name));
            cases.add(
                "content type",
                "PATCH",
                kind,
                Pair::new(Method::PATCH, at).raw(b"{}").of(kind),
            );
        }
    }
    cases.found
}

const PATCHES: [&str; 3] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

/// JSON patches that do not fit.
pub fn json_patches(resource: &Resource) -> Vec<Case> {
    let mut cases = Cases::new(resource);
    let patches: [&'static [u8]; 9] = [
        br#"[{"op":"replace","path":"/metadata/none","value":1}]"#,
        br#"[{"op":"remove","path":"/metadata/none"}]"#,
        br#"[{"op":"test","path":"/metadata/name","value":"other"}]"#,
        br#"[{"op":"move","from":"/metadata/none","path":"/metadata/labels"}]"#,
        br#"[{"op":"copy","from":"/metadata/labels","path":"/metadata/annotations"}]"#,
        br#"[{"op":"wrong","path":"/metadata/labels"}]"#,
        br#"[{"op":"add","path":"metadata","value":1}]"#,
        br#"[{"op":"add","path":"/metadata/labels/c","value":1}]"#,
        br#"[{"op":"replace","path":"","value":{}}]"#,
    ];
    let name = resource.name(crate::LIVE);
    for patch in patches {
        let at = |whose| format!("{}?dryRun=All", resource.path_of(whose, name));
        let pair = Pair::new(Method::PATCH, at).raw(patch).of(PATCHES[0]);
        cases.add("json patch", "(patch)", &String::from_utf8_lossy(patch), pair);
    }
    let strategic: [&'static [u8]; 6] = [
        br#"{"metadata":{"labels":{"$patch":"replace","c":"d"}}}"#,
        br#"{"metadata":{"$patch":"delete"}}"#,
        br#"{"metadata":{"$patch":"wrong"}}"#,
        br#"{"metadata":{"$retainKeys":["name"],"name":"a"}}"#,
        br#"{"metadata":{"finalizers":["a.example.com/b"],"$setElementOrder/finalizers":["a.example.com/b"]}}"#,
        br#"{"metadata":{"$deleteFromPrimitiveList/finalizers":["a.example.com/b"]}}"#,
    ];
    for patch in strategic {
        let at = |whose| format!("{}?dryRun=All", resource.path_of(whose, name));
        let pair = Pair::new(Method::PATCH, at).raw(patch).of(PATCHES[2]);
        cases.add("strategic patch", "(patch)", &String::from_utf8_lossy(patch), pair);
    }
    cases.found
}

/// Queries, most of them wrong, of the requests that read them. `fieldValidation` is not among them: it is newer than their server.
pub fn queries(resource: &Resource) -> Vec<Case> {
    let mut cases = Cases::new(resource);
    let objects = BOTH.map(|whose| resource.object(whose, "new"));
    for query in [
        "dryRun=Some",
        "dryRun=All&dryRun=All",
        "dryRun=All&fieldManager=a%00b",
        "dryRun=All&pretty=x",
        "dryRun=All&force=true",
        "dryRun=All&none=1",
    ] {
        let pair = Pair::new(Method::POST, |whose| format!("{}?{query}", resource.path(whose)));
        cases.add("query", "POST", query, pair.json(&objects));
    }
    let long = format!("dryRun=All&fieldManager={}", "a".repeat(129));
    let pair = Pair::new(Method::POST, |whose| format!("{}?{long}", resource.path(whose)));
    cases.add("query", "POST", "fieldManager of 129 letters", pair.json(&objects));
    if !resource.is_stored {
        return cases.found;
    }
    for query in LIST_QUERIES {
        let at = |whose| format!("{}?labelSelector=a%3Db&{query}", resource.path(whose));
        cases.add("list", "query", query, Pair::new(Method::GET, at));
    }
    for selector in SELECTORS {
        let at = |whose| format!("{}?labelSelector={selector}", resource.path(whose));
        cases.add("list", "labelSelector", selector, Pair::new(Method::GET, at));
    }
    for selector in FIELD_SELECTORS {
        let at = |whose| {
            format!("{}?labelSelector=a%3Db&fieldSelector={selector}", resource.path(whose))
        };
        cases.add("list", "fieldSelector", selector, Pair::new(Method::GET, at));
    }
    let name = resource.name(crate::LIVE);
    for query in ["resourceVersion=0", "resourceVersion=x", "pretty=true", "export=true", "none=1"]
    {
        let at = |whose| format!("{}?{query}", resource.path_of(whose, name));
        cases.add("get", "query", query, Pair::new(Method::GET, at));
    }
    cases.found
}

const LIST_QUERIES: [&str; 20] = [
    "limit=x",
    "limit=-1",
    "limit=0",
    "limit=1",
    "continue=abc",
    "continue=abc&limit=1",
    "continue=abc&resourceVersion=1",
    "resourceVersion=x",
    "resourceVersion=-1",
    "resourceVersion=0",
    "resourceVersion=99999999&timeoutSeconds=1",
    "resourceVersionMatch=Exact",
    "resourceVersionMatch=NotOlderThan&resourceVersion=0",
    "resourceVersionMatch=Exact&resourceVersion=0",
    "resourceVersionMatch=Wrong&resourceVersion=1",
    "resourceVersionMatch=Exact&resourceVersion=1&continue=abc",
    "timeoutSeconds=x",
    "watch=maybe&timeoutSeconds=1",
    "watch=true&timeoutSeconds=x",
    "watch=true&resourceVersion=x&timeoutSeconds=1",
];

const SELECTORS: [&str; 18] = [
    "a",
    "!a",
    "a%3Db",
    "a%3D%3Db",
    "a!%3Db",
    "a+in+(b,c)",
    "a+notin+(b)",
    "a+in+()",
    "a+in+(b",
    "a+in",
    "a%3E1",
    "a%3Ex",
    "%3Db",
    "a%3Db,a%3Dc",
    "a%3Db,",
    "-a%3Db",
    "a%3DNot+Valid",
    "a/b/c%3Dd",
];

const FIELD_SELECTORS: [&str; 9] = [
    "metadata.name%3Dlive",
    "metadata.name!%3Dlive",
    "metadata.namespace%3Ddifferential",
    "metadata.none%3Da",
    "spec.nodeName%3D",
    "status.phase%3DPending",
    "type%3DOpaque",
    "a",
    "metadata.name%3Da%3Db",
];

/// Updates with other names, versions and kinds, given the object as each server has it.
pub fn identities(resource: &Resource, live: &[Json; 2]) -> Vec<Case> {
    let mut cases = Cases::new(resource);
    let name = resource.name(crate::LIVE);
    let changes: [(&str, Json); 14] = [
        ("name", json!("other")),
        ("name", json!("")),
        ("namespace", json!("other")),
        ("namespace", json!("")),
        ("uid", json!("other")),
        ("uid", json!("")),
        ("resourceVersion", json!("")),
        ("resourceVersion", json!("1")),
        ("resourceVersion", json!("x")),
        ("creationTimestamp", json!(null)),
        ("generation", json!(77)),
        ("deletionTimestamp", json!("2020-01-01T00:00:00Z")),
        ("finalizers", json!(["a"])),
        ("labels", json!({"Not Valid": "b"})),
    ];
    for (field, value) in changes {
        let mut objects = live.clone();
        objects.iter_mut().for_each(|object| object["metadata"][field] = value.clone());
        let at = |whose| format!("{}?dryRun=All", resource.path_of(whose, name));
        let pair = Pair::new(Method::PUT, at).json(&objects);
        cases.add("update", &format!("metadata.{field}"), &value.to_string(), pair);
        let body = json!({"metadata": {field: value}});
        let pair = Pair::new(Method::PATCH, at).json(&[body.clone(), body]).of(PATCHES[1]);
        cases.add("merge patch", &format!("metadata.{field}"), &value.to_string(), pair);
    }
    for (field, value) in
        [("kind", "Other"), ("kind", ""), ("apiVersion", "a/v1"), ("apiVersion", "")]
    {
        let mut objects = live.clone();
        objects.iter_mut().for_each(|object| object[field] = json!(value));
        let at = |whose| format!("{}?dryRun=All", resource.path_of(whose, name));
        cases.add("update", field, value, Pair::new(Method::PUT, at).json(&objects));
    }
    let mut objects = BOTH.map(|whose| resource.object(whose, "missing"));
    objects.iter_mut().for_each(|object| object["metadata"]["name"] = json!("missing"));
    let at = |whose| format!("{}?dryRun=All", resource.path_of(whose, "missing"));
    cases.add("update", "(missing)", "", Pair::new(Method::PUT, at).json(&objects));
    for method in [Method::GET, Method::DELETE] {
        let label = method.to_string();
        cases.add("missing", &label, "", Pair::new(method, at));
    }
    let pair = Pair::new(Method::PATCH, at).raw(b"{}").of(PATCHES[1]);
    cases.add("missing", "PATCH", "", pair);
    cases.found
}

/// Deletions as dry runs, with options in the body and in the query.
pub fn deletions(resource: &Resource, live: &[Json; 2]) -> Vec<Case> {
    let mut cases = Cases::new(resource);
    let name = resource.name(crate::LIVE);
    let at = |query: &'static str| {
        move |whose| format!("{}?dryRun=All&{query}", resource.path_of(whose, name))
    };
    let own = |field: &str| {
        BOTH.map(|whose| live[usize::from(whose == Whose::Ours)]["metadata"][field].clone())
    };
    let with = |options: Json| [options.clone(), options];
    let preconditions =
        |field: &str| own(field).map(|value| json!({"preconditions": {field: value}}));
    let mut options = vec![
        ("none", with(json!({}))),
        ("right uid", preconditions("uid")),
        ("right version", preconditions("resourceVersion")),
        ("wrong uid", with(json!({"preconditions": {"uid": "a"}}))),
        ("wrong version", with(json!({"preconditions": {"resourceVersion": "1"}}))),
        ("text as version", with(json!({"preconditions": {"resourceVersion": "x"}}))),
        ("both ways", with(json!({"propagationPolicy": "Orphan", "orphanDependents": true}))),
        ("orphan", with(json!({"orphanDependents": true}))),
        ("wrong kind", with(json!({"kind": "Other", "apiVersion": "v1"}))),
        ("wrong version of options", with(json!({"kind": "DeleteOptions", "apiVersion": "a/v7"}))),
        ("wrong dryRun", with(json!({"dryRun": ["Some"]}))),
        ("text as grace", with(json!({"gracePeriodSeconds": "1"}))),
        ("unknown field", with(json!({"unknown": 1}))),
    ];
    for policy in ["Orphan", "Background", "Foreground", "Wrong", ""] {
        options.push((policy, with(json!({"propagationPolicy": policy}))));
    }
    for (label, seconds) in [("-1", -1), ("0", 0), ("1", 1), ("large", 1_i64 << 40)] {
        options.push((label, with(json!({"gracePeriodSeconds": seconds}))));
    }
    for (label, bodies) in options {
        let dry = bodies.map(|mut body| {
            if body.get("dryRun").is_none() {
                body["dryRun"] = json!(["All"]);
            }
            body
        });
        let pair = Pair::new(Method::DELETE, |whose| resource.path_of(whose, name)).json(&dry);
        cases.add("delete", "options", label, pair);
    }
    for query in [
        "propagationPolicy=Orphan",
        "propagationPolicy=Wrong",
        "orphanDependents=x",
        "gracePeriodSeconds=x",
        "gracePeriodSeconds=-1",
        "gracePeriodSeconds=0",
    ] {
        cases.add("delete", "query", query, Pair::new(Method::DELETE, at(query)));
    }
    cases.found
}

/// Lists in chunks, with other forms of their items.
pub fn lists(resource: &Resource) -> Vec<Case> {
    let mut cases = Cases::new(resource);
    let page = |more: &'static str| {
        Pair::new(Method::GET, move |whose| {
            format!("{}?labelSelector=chunk%3Dyes&limit=2{more}", resource.path(whose))
        })
    };
    let steps = vec![page(""), page("&continue={continue}"), page("&continue={continue}")];
    cases.steps("list", "continue", "pages of two", steps);
    let metadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    cases.add("accept", "list", metadata, page("").accepting(metadata));
    cases.add(
        "accept",
        "list",
        "wrong",
        page("").accepting("application/json;as=Other;g=meta.k8s.io;v=v1"),
    );
    cases.add("accept", "list", "html", page("").accepting("text/html"));
    cases.found
}

/// Writes of the scale, given as each server has it.
pub fn scales(resource: &Resource, scale: &[Json; 2]) -> Vec<Case> {
    let mut cases = Cases::new(resource);
    let name = resource.name(crate::LIVE);
    let at = |whose| format!("{}/scale?dryRun=All", resource.path_of(whose, name));
    cases.add("scale", "get", "", Pair::new(Method::GET, at));
    let values = [
        json!(2),
        json!(0),
        json!(-1),
        json!(70_000),
        json!(null),
        json!("1"),
        json!(4_294_967_296_i64),
    ];
    for value in values {
        let mut objects = scale.clone();
        objects.iter_mut().for_each(|object| object["spec"]["replicas"] = value.clone());
        let pair = Pair::new(Method::PUT, at).json(&objects);
        cases.add("scale", "spec.replicas", &value.to_string(), pair);
        for kind in PATCHES.iter().skip(1) {
            let body = json!({"spec": {"replicas": value}});
            let pair = Pair::new(Method::PATCH, at).json(&[body.clone(), body]).of(kind);
            cases.add("scale", kind, &value.to_string(), pair);
        }
    }
    for (field, value) in
        [("name", "other"), ("resourceVersion", "1"), ("uid", "x"), ("namespace", "a")]
    {
        let mut objects = scale.clone();
        objects.iter_mut().for_each(|object| object["metadata"][field] = json!(value));
        let pair = Pair::new(Method::PUT, at).json(&objects);
        cases.add("scale", &format!("metadata.{field}"), value, pair);
    }
    for (field, value) in [("kind", "Other"), ("apiVersion", "v7")] {
        let mut objects = scale.clone();
        objects.iter_mut().for_each(|object| object[field] = json!(value));
        cases.add("scale", field, value, Pair::new(Method::PUT, at).json(&objects));
    }
    cases.found
}

/// Deletions for real, with what is there afterwards.
pub fn real_deletions(resource: &Resource) -> Vec<Case> {
    let mut cases = Cases::new(resource);
    for (number, policy) in ["Orphan", "Foreground", "Background"].into_iter().enumerate() {
        for grace in ["", "&gracePeriodSeconds=0"] {
            let name = format!("deleted-{number}-{}", grace.len());
            let objects = BOTH.map(|whose| resource.object(whose, &name));
            let at = |query: &str| {
                let query = query.to_owned();
                let name = name.clone();
                move |whose| format!("{}{query}", resource.path_of(whose, &name))
            };
            let steps = vec![
                Pair::new(Method::POST, |whose| resource.path(whose)).json(&objects),
                Pair::new(Method::DELETE, at(&format!("?propagationPolicy={policy}{grace}"))),
                Pair::new(Method::GET, at("")),
                Pair::new(Method::PATCH, at(""))
                    .raw(br#"{"metadata":{"finalizers":null}}"#)
                    .of(PATCHES[1]),
                Pair::new(Method::GET, at("")),
            ];
            cases.steps("delete", "(real)", &format!("{policy}{grace}"), steps);
        }
    }
    cases.found
}
