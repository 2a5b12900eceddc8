//! Tests of patches as tables: document, patch, result.

use proto_api::names::{Names, Profile};
use serde_json::{Value as Json, json};

use super::{JSON_PATCH_OPS_MAX, PatchError, PatchType, apply_json_patch, apply_merge_patch};
use crate::value::{Value, parse_json, write_json};
use crate::{Engine, Format, Object, Strictness};

fn tree(json: &Json) -> Value {
    parse_json(json.to_string().as_bytes(), &mut Vec::new()).expect("JSON")
}

fn untree(value: &Value) -> Json {
    let mut out = Vec::new();
    write_json(&mut out, value);
    serde_json::from_slice(&out).expect("JSON")
}

fn json_patch(document: &Json, patch: &Json) -> Result<Json, PatchError> {
    let mut document = tree(document);
    apply_json_patch(&mut document, &tree(patch)).map(|()| untree(&document))
}

#[test]
fn json_patch_operations() {
    let cases = [
        (
            json!({"a": 1}),
            json!([{"op": "add", "path": "/b", "value": [1]}]),
            json!({"a": 1, "b": [1]}),
        ),
        (json!([1, 3]), json!([{"op": "add", "path": "/1", "value": 2}]), json!([1, 2, 3])),
        (json!([1]), json!([{"op": "add", "path": "/-", "value": 2}]), json!([1, 2])),
        (json!({"a": 1}), json!([{"op": "add", "path": "", "value": [7]}]), json!([7])),
        (json!({"a~b/c": 1}), json!([{"op": "remove", "path": "/a~0b~1c"}]), json!({})),
        (json!([1, 2, 3]), json!([{"op": "remove", "path": "/-1"}]), json!([1, 2])),
        (
            json!({"a": {"b": 1}}),
            json!([{"op": "replace", "path": "/a/b", "value": null}]),
            json!({"a": {"b": null}}),
        ),
        (json!({"a": 1}), json!([{"op": "move", "from": "/a", "path": "/b"}]), json!({"b": 1})),
        (
            json!({"a": [1]}),
            json!([{"op": "copy", "from": "/a", "path": "/b"}]),
            json!({"a": [1], "b": [1]}),
        ),
        (
            json!({"a": {"x": 1, "y": 2}}),
            json!([{"op": "test", "path": "/a", "value": {"y": 2, "x": 1}}, {"op": "remove", "path": "/a/x"}]),
            json!({"a": {"y": 2}}),
        ),
        (json!({}), json!([{"op": "test", "path": "/a", "value": null}]), json!({})),
    ];
    for (document, patch, expect) in cases {
        assert_eq!(json_patch(&document, &patch), Ok(expect), "{patch}");
    }
}

#[test]
fn json_patches_that_do_not_apply() {
    let document = json!({"a": [1], "b": {"c": 1}, "d": "text"});
    let inapplicable = [
        json!([{"op": "remove", "path": "/x"}]),
        json!([{"op": "replace", "path": "/a/1", "value": 1}]),
        json!([{"op": "add", "path": "/a/2", "value": 1}]),
        json!([{"op": "add", "path": "/a/01", "value": 1}]),
        json!([{"op": "add", "path": "/d/x", "value": 1}]),
        json!([{"op": "add", "path": "/x/y", "value": 1}]),
        json!([{"op": "test", "path": "/b/c", "value": 2}]),
        json!([{"op": "move", "from": "/b", "path": "/b/c"}]),
        json!([{"op": "copy", "from": "/x", "path": "/y"}]),
    ];
    for patch in inapplicable {
        let got = json_patch(&document, &patch);
        assert!(matches!(got, Err(PatchError::Inapplicable(_))), "{patch}: {got:?}");
    }
    let malformed = [
        json!({}),
        json!([1]),
        json!([{"path": "/a"}]),
        json!([{"op": "add", "path": "a", "value": 1}]),
        json!([{"op": "add", "path": "/a"}]),
        json!([{"op": "spin", "path": "/a"}]),
        json!([{"op": "move", "path": "/a"}]),
    ];
    for patch in malformed {
        let got = json_patch(&document, &patch);
        assert!(matches!(got, Err(PatchError::Malformed(_))), "{patch}: {got:?}");
    }
}

#[test]
fn json_patches_are_bounded() {
    let test = json!({"op": "test", "path": "/a", "value": 1});
    let many = Json::Array(vec![test; JSON_PATCH_OPS_MAX + 1]);
    let got = json_patch(&json!({"a": 1}), &many);
    assert_eq!(got, Err(PatchError::TooManyOperations(JSON_PATCH_OPS_MAX + 1)));
    // Each copy doubles the document.
    let double = json!({"op": "copy", "from": "/a", "path": "/a/-"});
    let got = json_patch(&json!({"a": ["0123456789"]}), &Json::Array(vec![double; 100]));
    assert!(matches!(got, Err(PatchError::Inapplicable(_))), "{got:?}");
}

/// Copying a document into its deepest value doubles its depth: without a bound, a few copies would overflow the stack.
#[test]
fn json_patches_cannot_nest_without_end() {
    let mut depth = 60;
    let mut document = json!(1);
    for _ in 0..depth {
        document = json!({"a": document});
    }
    let mut operations = Vec::new();
    for _ in 0..15 {
        operations.push(json!({"op": "copy", "from": "", "path": "/a".repeat(depth)}));
        depth *= 2;
    }
    let got = json_patch(&document, &Json::Array(operations));
    assert!(
        matches!(&got, Err(PatchError::Inapplicable(why)) if why.contains("nested")),
        "{got:?}"
    );
}

#[test]
fn merge_patch_of_rfc_7396() {
    let cases = [
        (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
        (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
        (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
        (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
        (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
        (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
        (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
    ];
    for (document, patch, expect) in cases {
        let mut got = tree(&document);
        apply_merge_patch(&mut got, tree(&patch));
        assert_eq!(untree(&got), expect, "{patch}");
    }
}

fn pod(engine: &Engine, spec: &Json) -> Object {
    let body = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {
        "name": "p", "finalizers": ["a/x", "a/y"], "labels": {"l": "1"},
    }, "spec": spec});
    let body = body.to_string();
    engine.decode_any(Format::Json, body.as_bytes(), Strictness::Strict).expect(&body).object
}

/// Patches a pod and returns its spec and finalizers.
fn strategic(spec: &Json, patch: &Json) -> Result<(Json, Json), PatchError> {
    let engine = Engine::new(Names::new(Profile::Kubernetes));
    let pod = pod(&engine, spec);
    let body = patch.to_string();
    let patched = engine
        .patch(&pod, PatchType::Strategic, body.as_bytes(), Strictness::Strict)?
        .expect(&body);
    let document = untree(&engine.document(&patched.object));
    Ok((document["spec"].clone(), document["metadata"]["finalizers"].clone()))
}

#[test]
fn strategic_patches_merge_lists_by_key() {
    let spec = json!({
        "containers": [{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}],
        "tolerations": [{"key": "t"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
    });
    let containers = |patch: Json| strategic(&spec, &json!({"spec": {"containers": patch}}));
    let cases = [
        (
            json!([{"name": "b", "image": "b:2"}]),
            json!([{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:2"}]),
        ),
        (
            json!([{"name": "c", "image": "c:1"}]),
            json!([{"name": "c", "image": "c:1"}, {"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}]),
        ),
        (json!([{"name": "a", "$patch": "delete"}]), json!([{"name": "b", "image": "b:1"}])),
        (
            json!([{"$patch": "replace"}, {"name": "z", "image": "z"}]),
            json!([{"name": "z", "image": "z"}]),
        ),
        (
            json!([{"name": "a", "image": null, "tty": true}]),
            json!([{"name": "a", "tty": true}, {"name": "b", "image": "b:1"}]),
        ),
    ];
    for (patch, expect) in cases {
        let (got, _) = containers(patch.clone()).expect("applies");
        assert_eq!(got["containers"], expect, "{patch}");
    }
    // Lists without a merge key are replaced; other fields are unchanged.
    let (got, _) =
        strategic(&spec, &json!({"spec": {"tolerations": [{"key": "u"}]}})).expect("applies");
    assert_eq!(got["tolerations"], json!([{"key": "u"}]));
    assert_eq!(got["containers"], spec["containers"]);
}

#[test]
fn strategic_patches_order_lists() {
    let spec = json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]});
    let names = |patch: Json| {
        let (spec, _) = strategic(&spec, &json!({"spec": patch})).expect("applies");
        let containers = spec["containers"].as_array().expect("a list").clone();
        containers
            .iter()
            .map(|c| c["name"].as_str().expect("a name").to_owned())
            .collect::<Vec<_>>()
    };
    let order =
        |names: &[&str]| Json::Array(names.iter().map(|name| json!({"name": name})).collect());
    assert_eq!(
        names(json!({"$setElementOrder/containers": order(&["c", "b", "a"])})),
        ["c", "b", "a"]
    );
    // Items that the patch does not name keep their place.
    assert_eq!(names(json!({"$setElementOrder/containers": order(&["c", "a"])})), ["b", "c", "a"]);
    let patch = json!({
        "$setElementOrder/containers": order(&["a", "d", "c"]),
        "containers": [{"name": "d", "image": "d"}, {"name": "b", "$patch": "delete"}],
    });
    assert_eq!(names(patch), ["a", "d", "c"]);
    let stray = json!({"spec": {
        "$setElementOrder/containers": order(&["a"]), "containers": [{"name": "d"}],
    }});
    assert!(matches!(strategic(&spec, &stray), Err(PatchError::Inapplicable(_))));
}

#[test]
fn strategic_patches_treat_lists_of_text_as_sets() {
    let spec = json!({"containers": []});
    let finalizers =
        |metadata: Json| strategic(&spec, &json!({"metadata": metadata})).expect("applies").1;
    assert_eq!(finalizers(json!({"finalizers": ["a/z"]})), json!(["a/z", "a/x", "a/y"]));
    assert_eq!(finalizers(json!({"finalizers": ["a/y"]})), json!(["a/x", "a/y"]));
    assert_eq!(finalizers(json!({"$deleteFromPrimitiveList/finalizers": ["a/x"]})), json!(["a/y"]));
    let both = json!({
        "$deleteFromPrimitiveList/finalizers": ["a/x"],
        "$setElementOrder/finalizers": ["a/z", "a/y"],
        "finalizers": ["a/z"],
    });
    assert_eq!(finalizers(both), json!(["a/z", "a/y"]));
    assert_eq!(finalizers(json!({"finalizers": null})), Json::Null);
}

#[test]
fn strategic_directives_of_messages() {
    let spec = json!({"containers": [], "volumes": [{"name": "v", "emptyDir": {}}],
        "securityContext": {"runAsUser": 1, "fsGroup": 2}});
    let patched = |patch: Json| strategic(&spec, &json!({"spec": patch})).map(|(spec, _)| spec);
    let cases = [
        (
            json!({"securityContext": {"runAsUser": 7}}),
            "securityContext",
            json!({"runAsUser": 7, "fsGroup": 2}),
        ),
        (
            json!({"securityContext": {"$patch": "replace", "runAsUser": 7}}),
            "securityContext",
            json!({"runAsUser": 7}),
        ),
        (json!({"securityContext": {"$patch": "delete"}}), "securityContext", json!({})),
        (json!({"securityContext": null}), "securityContext", Json::Null),
        (
            json!({"volumes": [{"$retainKeys": ["name", "hostPath"], "name": "v", "hostPath": {"path": "/x"}}]}),
            "volumes",
            json!([{"name": "v", "hostPath": {"path": "/x"}}]),
        ),
    ];
    for (patch, field, expect) in cases {
        assert_eq!(patched(patch.clone()).expect("applies")[field], expect, "{patch}");
    }
    let wrong = [
        json!({"securityContext": {"$patch": "explode"}}),
        json!({"volumes": [{"$retainKeys": ["name"], "name": "v", "hostPath": {"path": "/x"}}]}),
        json!({"volumes": [{"emptyDir": {}}]}),
        json!({"$setElementOrder/volumes": {}}),
        json!({"volumes": [{"$patch": "delete"}]}),
    ];
    for patch in wrong {
        assert!(patched(patch.clone()).is_err(), "{patch}");
    }
}

#[test]
fn a_patched_object_is_checked_like_a_decoded_one() {
    let engine = Engine::new(Names::new(Profile::Kubernetes));
    let pod = pod(&engine, &json!({"containers": [{"name": "a"}]}));
    let patch = |patch_type, body: Json, strictness| {
        engine.patch(&pod, patch_type, body.to_string().as_bytes(), strictness)
    };
    let unknown = json!({"spec": {"nodename": "x"}});
    let warned =
        patch(PatchType::Merge, unknown.clone(), Strictness::Warn).expect("applies").expect("fits");
    assert_eq!(warned.warnings, ["unknown field \"spec.nodename\""]);
    let refused = patch(PatchType::Merge, unknown, Strictness::Strict).expect("applies");
    assert_eq!(
        refused.map_err(|e| e.to_string()),
        Err("strict decoding error: unknown field \"spec.nodename\"".into())
    );
    let wrong = json!([{"op": "replace", "path": "/spec/containers", "value": "none"}]);
    let refused = patch(PatchType::Json, wrong, Strictness::Ignore).expect("applies");
    let message = refused.expect_err("a list is wanted").to_string();
    assert!(message.ends_with("spec.containers: expected array, got string"), "{message}");
    let other_kind =
        patch(PatchType::Merge, json!({"kind": "Node"}), Strictness::Ignore).expect("applies");
    assert!(other_kind.is_err());
    let list = patch(PatchType::Merge, json!([]), Strictness::Ignore);
    assert!(matches!(list, Err(PatchError::Malformed(_))));
}

/// The work of a patch is proportional to its size: read and shifted entries are counted.
mod proportion {
    use super::super::{PatchType, apply_json_patch, apply_merge_patch};
    use crate::value::{Map, Value, parse_json};
    use crate::{Engine, Format, Strictness};
    use proto_api::names::{Names, Profile};

    /// Checks that twice the input costs at most three times the work.
    fn check(what: &str, work: impl Fn(usize) -> u64) {
        let sizes: Vec<usize> = (0..4).map(|power| 500 << power).collect();
        let costs: Vec<u64> = sizes.iter().map(|size| work(*size)).collect();
        for pair in costs.windows(2) {
            assert!(pair[0] > 0 && pair[1] <= pair[0] * 3, "{what}: {costs:?} steps for {sizes:?}");
        }
    }

    fn tree(text: &str) -> Value {
        parse_json(text.as_bytes(), &mut Vec::new()).expect("JSON")
    }

    /// `{"k…":"",…}` with keys of one parity, optionally not in sorted order.
    fn object(size: usize, odd: usize, mixed: bool) -> String {
        let place = |at: usize| if mixed { (at * 7919) % size } else { at };
        let entries: Vec<String> =
            (0..size).map(|at| format!("\"k{:07}\":\"\"", place(at) * 2 + odd)).collect();
        format!("{{{}}}", entries.join(","))
    }

    #[test]
    fn merge_patches() {
        for mixed in [false, true] {
            check("keys between keys", |size| {
                let (mut target, patch) =
                    (tree(&object(size, 0, mixed)), tree(&object(size, 1, mixed)));
                proto_api::steps::count_during(|| apply_merge_patch(&mut target, patch))
            });
            check("all keys away", |size| {
                let mut target = tree(&object(size, 0, mixed));
                let patch = tree(&object(size, 0, mixed).replace("\"\"", "null"));
                let cost = proto_api::steps::count_during(|| apply_merge_patch(&mut target, patch));
                assert_eq!(target, Value::Map(Map::new()));
                cost
            });
        }
    }

    #[test]
    fn strategic_patches() {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let pod = |list: &str, items: String| {
            format!(
                r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"p"}},"spec":{{"{list}":[{items}]}}}}"#
            )
        };
        let items = |size: usize, odd: usize, item: &dyn Fn(usize) -> String| {
            (0..size).map(|at| item(at * 2 + odd)).collect::<Vec<_>>().join(",")
        };
        let named = |at: usize| format!(r#"{{"name":"n{at}"}}"#);
        let gone = |at: usize| format!(r#"{{"name":"n{at}","$patch":"delete"}}"#);
        let apply = |old: &str, patch: &str| {
            let body = old.as_bytes();
            let old = engine.decode_any(Format::Json, body, Strictness::Ignore).expect("a pod");
            proto_api::steps::count_during(|| {
                let kind = PatchType::Strategic;
                let patched = engine.patch(&old.object, kind, patch.as_bytes(), Strictness::Ignore);
                assert!(matches!(patched, Ok(Ok(_))), "{patched:.300?}");
            })
        };
        check("items added", |size| {
            let patch = pod("containers", items(size, 1, &named));
            apply(&pod("containers", items(size, 0, &named)), &patch)
        });
        check("items deleted", |size| {
            let patch = pod("containers", items(size, 0, &gone));
            apply(&pod("containers", items(size, 0, &named)), &patch)
        });
        check("items ordered", |size| {
            let list = items(size, 0, &named);
            let spec = format!(
                r#"{{"spec":{{"containers":[{list}],"$setElementOrder/containers":[{list}]}}}}"#
            );
            apply(&pod("containers", list), &spec)
        });
        let finalizers = |list: String, directive: &str| {
            format!(
                r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"p","{directive}finalizers":[{list}]}}}}"#
            )
        };
        let text = |at: usize| format!("\"f{at}\"");
        for (directive, odd) in [("", 1), ("$deleteFromPrimitiveList/", 0)] {
            check("texts added or deleted", |size| {
                let old = finalizers(items(size, 0, &text), "");
                apply(&old, &finalizers(items(size, odd, &text), directive))
            });
        }
    }

    /// The total cost of a JSON patch's operations is bounded.
    #[test]
    fn json_patches_stop_where_they_cost_too_much() {
        let large = object(20_000, 0, true);
        let mut document = tree(&format!(r#"{{"raw":{large}}}"#));
        let operations: Vec<String> = (0..10_000)
            .map(|at| format!(r#"{{"op":"add","path":"/raw/new{at}","value":""}}"#))
            .collect();
        let patch = tree(&format!("[{}]", operations.join(",")));
        let error = apply_json_patch(&mut document, &patch).expect_err("too much");
        assert!(error.to_string().contains("moves too many items"), "{error:.200}");
        let moves: Vec<String> = (0..10_000)
            .map(|at| format!(r#"{{"op":"move","from":"/{}","path":"/{}"}}"#, at % 2, (at + 1) % 2))
            .collect();
        let mut document = tree(&format!(r#"{{"0":{large}}}"#));
        let patch = tree(&format!("[{}]", moves.join(",")));
        let error = apply_json_patch(&mut document, &patch).expect_err("too much");
        assert!(error.to_string().contains("moves too many items"), "{error:.200}");
    }
}

#[test]
fn webhooks_patch_what_clients_read() {
    let engine = Engine::new(Names::new(Profile::Kubernetes));
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let text = pod.to_string();
    let decoded = engine.decode_any(Format::Json, text.as_bytes(), Strictness::Strict);
    let pod = decoded.expect("valid").object;
    let patched = |patch: Json| {
        let patched = engine.patch_written(&pod, patch.to_string().as_bytes());
        patched.map(|patched| patched.map(|decoded| decoded.object))
    };
    // `resources` is empty and there.
    let path = "/spec/containers/0/resources/limits";
    let limits = json!([{"op": "add", "path": path, "value": {"cpu": "1"}}]);
    let limited = patched(limits).expect("applies").expect("a pod");
    assert_eq!(
        limited.fields.at(&["spec", "containers"]).map(|list| list.as_list().map(<[_]>::len)),
        Some(Some(1))
    );
    let written = String::from_utf8(engine.encode_json(&limited)).expect("text");
    assert!(written.contains(r#""resources":{"limits":{"cpu":"1"}}"#), "{written}");
    // What is empty leaves no trace in the tree.
    let test = json!([{"op": "test", "path": "/metadata/name", "value": "p"}]);
    assert_eq!(patched(test), Ok(Ok(pod.clone())));
}

/// Each time that a patch names an item, what is in it is copied.
#[test]
fn large_items_that_a_patch_names_often_are_refused() {
    let merge = |envs: usize, times: usize| {
        let env: Vec<Json> = (0..envs).map(|n| json!({"name": n.to_string()})).collect();
        let spec = json!({"containers": [{"name": "a", "env": env}]});
        let again = vec![json!({"name": "a", "env": [{"name": "z"}]}); times];
        strategic(&spec, &json!({"spec": {"containers": again}})).map(drop)
    };
    assert_eq!(merge(20_000, 1), Ok(()));
    assert_eq!(merge(10, 5_000), Ok(()), "small items");
    assert!(matches!(merge(20_000, 1_000), Err(PatchError::Inapplicable(_))));
}

#[test]
fn items_with_long_texts_that_a_patch_names_often_are_refused() {
    let text = "x".repeat(1 << 20);
    let merge = |times: usize| {
        let env = json!([{"name": "long", "value": text}]);
        let spec = json!({"containers": [{"name": "a", "env": env}]});
        let again = vec![json!({"name": "a", "env": []}); times];
        strategic(&spec, &json!({"spec": {"containers": again}})).map(drop)
    };
    assert_eq!(merge(20), Ok(()));
    assert!(matches!(merge(40), Err(PatchError::Inapplicable(_))));
}
