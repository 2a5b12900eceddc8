//! LimitRanges and pods or claims: what is set, or why they are refused.

use apiserver_schema::{Engine, Format, Map, Object, Strictness};
use proto_api::names::{Names, Profile};
use serde_json::{Value as Json, json};

use super::constraints::{LimitedObject, violations};
use super::{Operation, is_limited, set_defaults};

const ANNOTATION: &str = "example.com/limit-ranger";

fn engine() -> Engine {
    Engine::new(Names::new(Profile::Kubernetes))
}

/// An object without defaults.
fn decoded(json: &Json) -> Object {
    let body = json.to_string();
    let decoded = engine().decode_any(Format::Json, body.as_bytes(), Strictness::Strict);
    decoded.unwrap_or_else(|error| panic!("{body}: {error}")).object
}

fn defaulted(json: &Json) -> Object {
    let mut object = decoded(json);
    engine().default(&mut object);
    object
}

fn range(limits: &Json) -> Json {
    json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l"}, "spec": {"limits": limits}})
}

/// A pod of containers and init containers, each a name with its resources.
fn pod(containers: &[(&str, Json)], initial: &[(&str, Json)]) -> Object {
    let list = |all: &[(&str, Json)]| -> Json {
        let made = all
            .iter()
            .map(|(name, resources)| json!({"name": name, "image": "i", "resources": resources}));
        made.collect()
    };
    let spec = json!({"containers": list(containers), "initContainers": list(initial)});
    defaulted(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}))
}

fn claim(requests: &Json) -> Object {
    let spec = json!({"resources": {"requests": requests, "limits": {"storage": "1"}}});
    defaulted(&json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "c"}, "spec": spec}))
}

/// What the first range has against an object.
fn refusal(ranges: &[Object], object: &Object) -> Option<String> {
    let subject = LimitedObject::from_object(object);
    ranges.iter().find_map(|range| violations(range.spec()?, &subject))
}

/// The only range, with these limits and without defaults of the API.
fn refused_by(limits: &Json, object: &Object) -> Option<String> {
    refusal(&[decoded(&range(limits))], object)
}

fn resources<'a>(pod: &'a Object, list: &str, at: usize) -> &'a Map {
    let container = pod.spec().and_then(|spec| spec.maps(list).nth(at)).expect("a container");
    container.map("resources").expect("resources")
}

#[test]
fn limit_range_defaults_are_set_and_listed_in_the_annotation() {
    let limits = json!([{"type": "Container", "default": {"cpu": "500m"},
        "defaultRequest": {"cpu": "100m", "memory": "64Mi"}},
        {"type": "PersistentVolumeClaim", "default": {"storage": "1"}}]);
    let none = json!({});
    let full = json!({"requests": {"cpu": "1m", "memory": "1"}, "limits": {"cpu": "1"}});
    let limited = json!({"limits": {"cpu": "1"}});
    let big = json!({"requests": {"example.com/a": "1", "memory": "1"}, "limits": {"example.com/a": "1"}});
    for (containers, initial, wanted) in [
        (
            vec![("a", &none)],
            vec![],
            "cpu, memory request for container a; cpu limit for container a",
        ),
        (vec![("a", &full)], vec![("b", &full)], ""),
        (vec![("a", &full), ("b", &limited)], vec![], "memory request for container b"),
        (
            vec![("a", &big)],
            vec![("i", &none)],
            "cpu request for container a; cpu limit for container a; \
             cpu, memory request for init container i; cpu limit for init container i",
        ),
    ] {
        let owned = |all: Vec<(&'static str, &Json)>| -> Vec<(&'static str, Json)> {
            all.into_iter().map(|(name, json)| (name, json.clone())).collect()
        };
        let mut pod = pod(&owned(containers), &owned(initial));
        let before = pod.clone();
        let range = defaulted(&range(&limits));
        set_defaults(&[range.spec().unwrap()], &mut pod, ANNOTATION).unwrap();
        let said = pod.annotations().remove(ANNOTATION);
        let text = format!("LimitRanger plugin set: {wanted}");
        assert_eq!(said, (!wanted.is_empty()).then_some(text));
        assert_eq!(pod == before, wanted.is_empty());
        let once = pod.clone();
        set_defaults(&[range.spec().unwrap()], &mut pod, ANNOTATION).unwrap();
        assert_eq!(pod, once, "nothing is left to set");
    }
}

#[test]
fn own_amounts_stay_and_maps_stay_sorted() {
    let limits = json!([{"type": "Container", "default": {"cpu": "500m", "memory": "1Gi", "example.com/z": "1"},
        "defaultRequest": {"cpu": "100m"}}]);
    let own = json!({"requests": {"memory": "1Mi"}, "limits": {"cpu": "2", "memory": "2Mi"}});
    let mut pod = pod(&[("a", own)], &[]);
    let range = defaulted(&range(&limits));
    set_defaults(&[range.spec().unwrap()], &mut pod, ANNOTATION).unwrap();
    let entries = |list: &str| -> Vec<(String, String)> {
        let map = resources(&pod, "containers", 0).map(list).unwrap();
        let text = |value: &apiserver_schema::Value| value.as_str().unwrap().to_owned();
        map.iter().map(|(name, value)| (name.to_owned(), text(value))).collect()
    };
    let owned = |all: &[(&str, &str)]| -> Vec<(String, String)> {
        all.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
    };
    assert_eq!(
        entries("limits"),
        owned(&[("cpu", "2"), ("example.com/z", "1"), ("memory", "2Mi")])
    );
    // The API's own default made the request of the CPU from its limit.
    assert_eq!(
        entries("requests"),
        owned(&[("cpu", "2"), ("example.com/z", "1"), ("memory", "1Mi")])
    );
}

#[test]
fn several_ranges_fill_in_turn_and_the_last_that_does_is_named() {
    let first = defaulted(&range(&json!([{"type": "Container", "defaultRequest": {"cpu": "1"}}])));
    let second = defaulted(&range(
        &json!([{"type": "Container", "defaultRequest": {"cpu": "2", "memory": "1Gi"}}]),
    ));
    let mut pod = pod(&[("a", json!({}))], &[]);
    let none = decoded(&range(&json!([])));
    let ranges = [&first, &second, &none].map(|range| range.spec().unwrap());
    set_defaults(&ranges, &mut pod, ANNOTATION).unwrap();
    let requests = resources(&pod, "containers", 0).map("requests").unwrap();
    assert_eq!((requests.str("cpu"), requests.str("memory")), ("1", "1Gi"));
    let said = pod.annotations().remove(ANNOTATION);
    assert_eq!(said.as_deref(), Some("LimitRanger plugin set: memory request for container a"));
}

#[test]
fn a_pod_does_not_grow_above_the_size_of_a_body() {
    let many: serde_json::Map<String, Json> =
        (0..400).map(|n| (format!("example.com/{}{n}", "r".repeat(40)), json!("1"))).collect();
    let range = defaulted(&range(&json!([{"type": "Container", "default": many}])));
    for (count, fits) in [(10, true), (1000, false)] {
        let containers: Vec<(String, Json)> =
            (0..count).map(|n| (format!("c{n}"), json!({}))).collect();
        let containers: Vec<(&str, Json)> =
            containers.iter().map(|(name, json)| (name.as_str(), json.clone())).collect();
        let mut pod = pod(&containers, &[]);
        let done = set_defaults(&[range.spec().unwrap()], &mut pod, ANNOTATION);
        assert_eq!(done.err().map(|error| error.code()), (!fits).then_some(413));
    }
}

fn of(requests: Json, limits: Json) -> Json {
    json!({"requests": requests, "limits": limits})
}

/// Compares what is said of a container with these resources, and of an init container.
fn check_container(limits: &Json, resources: &Json, wanted: Option<&str>) {
    let fine = of(json!({"cpu": "1"}), json!({"cpu": "1", "memory": "1"}));
    for (own, other) in [(resources, &fine), (&fine, resources)] {
        let pod = pod(&[("a", own.clone())], &[("i", other.clone())]);
        assert_eq!(refused_by(limits, &pod).as_deref(), wanted, "{resources}");
    }
}

#[test]
fn containers_keep_their_bounds() {
    let bounds = json!([{"type": "Container", "min": {"cpu": "100m"}, "max": {"memory": "1Gi"}}]);
    let cpu_max = json!([{"type": "Container", "max": {"cpu": "1"}}]);
    for (limits, resources, wanted) in [
        (&bounds, of(json!({"cpu": "100m"}), json!({"memory": "1Gi"})), None),
        (
            &bounds,
            of(json!({"cpu": "50m"}), json!({"memory": "1Gi"})),
            Some("minimum cpu usage per Container is 100m, but request is 50m"),
        ),
        (
            &bounds,
            of(json!({"cpu": "200m"}), json!({"memory": "1Gi", "cpu": "90m"})),
            Some("minimum cpu usage per Container is 100m, but limit is 90m"),
        ),
        (
            &bounds,
            of(json!({}), json!({"memory": "1Gi"})),
            Some("minimum cpu usage per Container is 100m.  No request is specified"),
        ),
        (
            &bounds,
            of(json!({"cpu": "1"}), json!({})),
            Some("maximum memory usage per Container is 1Gi.  No limit is specified"),
        ),
        (
            &bounds,
            of(json!({"cpu": "1"}), json!({"memory": "1025Mi"})),
            Some("maximum memory usage per Container is 1Gi, but limit is 1025Mi"),
        ),
        (
            &bounds,
            of(json!({"cpu": "50m", "memory": "1"}), json!({"memory": "2G"})),
            Some(
                "[minimum cpu usage per Container is 100m, but request is 50m, \
                maximum memory usage per Container is 1Gi, but limit is 2G]",
            ),
        ),
        (
            &cpu_max,
            of(json!({"cpu": "2"}), json!({"cpu": "1"})),
            Some("maximum cpu usage per Container is 1, but request is 2"),
        ),
        // Rounded up to thousandths, as Kubernetes does.
        (
            &cpu_max,
            of(json!({"cpu": "1"}), json!({"cpu": "1000100u"})),
            Some("maximum cpu usage per Container is 1, but limit is 1000100u"),
        ),
        (&bounds, of(json!({"cpu": "99100u"}), json!({"memory": "1"})), None),
    ] {
        check_container(limits, &resources, wanted);
    }
}

#[test]
fn containers_keep_their_ratios() {
    let ratio = json!([{"type": "Container", "maxLimitRequestRatio": {"cpu": "1500m"}}]);
    for (limits, resources, wanted) in [
        (&ratio, of(json!({"cpu": "2"}), json!({"cpu": "3"})), None),
        (
            &ratio,
            of(json!({"cpu": "2"}), json!({"cpu": "4"})),
            Some(
                "cpu max limit to request ratio per Container is 1500m, but provided ratio is 2.000000",
            ),
        ),
        (
            &ratio,
            of(json!({"cpu": "0"}), json!({"cpu": "3"})),
            Some(
                "cpu max limit to request ratio per Container is 1500m, but no request is specified or request is 0",
            ),
        ),
        (
            &ratio,
            of(json!({"cpu": "1"}), json!({})),
            Some(
                "cpu max limit to request ratio per Container is 1500m, but no limit is specified or limit is 0",
            ),
        ),
    ] {
        check_container(limits, &resources, wanted);
    }
}

#[test]
fn pods_keep_their_bounds_in_total() {
    let memory =
        |amount: &str| json!({"limits": {"memory": amount}, "requests": {"memory": amount}});
    let cpu = |request: &str| json!({"requests": {"cpu": request}});
    let max = json!([{"type": "Pod", "max": {"memory": "1Gi"}}]);
    let min = json!([{"type": "Pod", "min": {"cpu": "1"}}]);
    let ratio = json!([{"type": "Pod", "maxLimitRequestRatio": {"memory": "1"}}]);
    for (limits, containers, initial, wanted) in [
        (&max, vec![memory("512Mi"), memory("512Mi")], vec![memory("1Gi"), memory("1Gi")], None),
        (
            &max,
            vec![memory("1Gi"), memory("1Gi")],
            vec![],
            Some("maximum memory usage per Pod is 1Gi, but limit is 2147483648"),
        ),
        (
            &max,
            vec![memory("1Mi")],
            vec![memory("2Gi"), memory("3Gi"), memory("1")],
            Some("maximum memory usage per Pod is 1Gi, but limit is 3Gi"),
        ),
        (
            &max,
            vec![memory("1Mi"), json!({})],
            vec![],
            Some("maximum memory usage per Pod is 1Gi.  No limit is specified"),
        ),
        (&max, vec![memory("1Mi"), json!({})], vec![memory("1Mi")], None),
        (&min, vec![cpu("700m"), cpu("300m")], vec![], None),
        (
            &min,
            vec![cpu("700m"), cpu("200m")],
            vec![cpu("800m")],
            Some("minimum cpu usage per Pod is 1, but request is 900m"),
        ),
        (
            &min,
            vec![cpu("2"), json!({})],
            vec![],
            Some("minimum cpu usage per Pod is 1.  No request is specified"),
        ),
        (&ratio, vec![memory("1"), memory("2")], vec![], None),
        (
            &ratio,
            vec![memory("1"), json!({"limits": {"memory": "2"}, "requests": {"memory": "1"}})],
            vec![],
            Some("memory max limit to request ratio per Pod is 1, but provided ratio is 1.500000"),
        ),
    ] {
        let named = |all: Vec<Json>| all.into_iter().map(|json| ("a", json)).collect::<Vec<_>>();
        let pod = pod(&named(containers), &named(initial));
        assert_eq!(refused_by(limits, &pod).as_deref(), wanted);
    }
}

#[test]
fn claims_keep_their_bounds_and_their_limits_mean_nothing() {
    let limits = json!([
        {"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "5Gi"},
            "maxLimitRequestRatio": {"storage": "1"}},
        {"type": "Container", "max": {"storage": "1"}},
    ]);
    for (requests, wanted) in [
        (json!({"storage": "1Gi"}), None),
        (json!({"storage": "5Gi"}), None),
        (
            json!({"storage": "1Mi"}),
            Some("minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 1Mi"),
        ),
        (
            json!({"storage": "6Gi"}),
            Some("maximum storage usage per PersistentVolumeClaim is 5Gi, but request is 6Gi"),
        ),
    ] {
        assert_eq!(refused_by(&limits, &claim(&requests)).as_deref(), wanted);
    }
    let mut bare = claim(&json!({}));
    bare.fields.map_or_insert("spec").remove("resources");
    let why = refused_by(&limits, &bare);
    assert_eq!(
        why.as_deref(),
        Some(
            "[minimum storage usage per PersistentVolumeClaim is 1Gi.  No request is specified, \
        maximum storage usage per PersistentVolumeClaim is 5Gi.  No request is specified]"
        )
    );
    // Limits of claims are not of pods.
    assert_eq!(refused_by(&json!([limits[0]]), &pod(&[("a", json!({}))], &[])), None);
}

#[test]
fn the_first_violated_limit_range_refuses_with_each_message_once() {
    let range = |cpu: &str| decoded(&range(&json!([{"type": "Container", "max": {"cpu": cpu}}])));
    let two = json!({"limits": {"cpu": "2"}});
    let pod = pod(&[("a", two.clone()), ("b", two)], &[]);
    let why = refusal(&[range("2"), range("1"), range("500m")], &pod);
    assert_eq!(why.as_deref(), Some("maximum cpu usage per Container is 1, but limit is 2"));
}

/// Amounts at the ends of what a quantity holds, and limits that validation would not let in.
#[test]
fn extreme_amounts_and_odd_ranges_harm_nothing() {
    let amounts = [
        "0",
        "-1",
        "1n",
        "9223372036854775807",
        "-9223372036854775808",
        "8Ei",
        "1e28",
        "-1e28",
        "1e999999999",
    ];
    for bound in amounts {
        let bounds = json!({"cpu": bound, "memory": bound});
        let limits: Vec<Json> = ["Container", "Pod", "PersistentVolumeClaim", "Thing", ""]
            .iter()
            .map(|kind| {
                json!({"type": kind, "min": bounds, "max": bounds, "default": bounds,
                "defaultRequest": bounds, "maxLimitRequestRatio": bounds})
            })
            .collect();
        let range = decoded(&range(&json!(limits)));
        for amount in amounts {
            let both = json!({"cpu": amount, "memory": amount, "storage": amount});
            let own = ("a", json!({"requests": both, "limits": both}));
            let mut pod = pod(&[own.clone(), own.clone(), ("b", json!({}))], &[own]);
            set_defaults(&[range.spec().unwrap()], &mut pod, ANNOTATION).unwrap();
            refusal(std::slice::from_ref(&range), &pod);
            refusal(std::slice::from_ref(&range), &claim(&both));
        }
    }
    let huge = json!({"limits": {"memory": "9223372036854775807"}});
    let max = json!([{"type": "Pod", "max": {"memory": "1Gi"}}]);
    let why = refused_by(&max, &pod(&[("a", huge.clone()), ("b", huge)], &[])).unwrap();
    assert_eq!(why, "maximum memory usage per Pod is 1Gi, but limit is 9223372036854775807");
}

#[test]
fn violations_of_one_range_have_a_bound() {
    let many: serde_json::Map<String, Json> =
        (0..3000).map(|n| (format!("example.com/r{n}"), json!("1"))).collect();
    let names: Vec<String> = (0..3000).map(|n| format!("c{n}")).collect();
    let containers: Vec<(&str, Json)> =
        names.iter().map(|name| (name.as_str(), json!({}))).collect();
    let why = refused_by(&json!([{"type": "Container", "max": many}]), &pod(&containers, &[]));
    assert_eq!(why.unwrap().matches("No limit").count(), 1000);
}

#[test]
fn limits_apply_to_new_pods_and_to_claims_that_stay() {
    use Operation::{Create, Update, UpdateSubresource};
    let pod = pod(&[("a", json!({}))], &[]);
    let (claim, mut going) = (claim(&json!({})), claim(&json!({})));
    going.set_meta_str("deletionTimestamp", "2026-01-02T03:04:05Z");
    let map = decoded(&json!({"apiVersion": "v1", "kind": "ConfigMap"}));
    for (operation, object, old, wanted) in [
        (Create, &pod, None, true),
        (Update, &pod, Some(&pod), false),
        (UpdateSubresource, &pod, Some(&pod), false),
        (Create, &claim, None, true),
        (Update, &claim, Some(&claim), true),
        (Update, &claim, Some(&going), false),
        (UpdateSubresource, &claim, Some(&claim), false),
        (Create, &map, None, false),
    ] {
        assert_eq!(is_limited(operation, object, old), wanted, "{operation:?} {:?}", object.kind);
    }
}
