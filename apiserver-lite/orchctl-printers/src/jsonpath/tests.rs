//! Templates and what Kubernetes documents of them.

use serde_json::json;

use super::*;

fn sample() -> Value {
    json!({
        "kind": "List",
        "items": [
            {"kind": "None", "metadata": {"name": "127.0.0.1", "labels": {"orch.io/hostname": "127.0.0.1"}},
             "status": {"capacity": {"cpu": "4"}, "addresses": [{"type": "LegacyHostIP", "address": "127.0.0.1"}]}},
            {"kind": "None", "metadata": {"name": "127.0.0.2"},
             "status": {"capacity": {"cpu": "8"}, "n": 3, "addresses": [
                {"type": "LegacyHostIP", "address": "127.0.0.2"}, {"type": "another", "address": "127.0.0.3"}]}},
        ],
        "users": [
            {"name": "myself", "user": {}},
            {"name": "e2e", "user": {"username": "admin", "password": "secret"}},
        ],
        "flag": true, "none": null, "number": 1.5,
    })
}

fn render(template: &str) -> Result<String, String> {
    Template::parse(template)
        .and_then(|parsed| parsed.render(&sample(), MissingFields::Skipped))
        .map_err(|error| error.to_string())
}

/// Templates that are answered otherwise on purpose: names may have either quotes, and an empty list among others ends nothing.
const DIFFERENCES: [(&str, &str); 3] = [
    ("{.data.kinds[0][\"name\",\"ok\"]}", "nail true"),
    ("{.data[\"words\"][0]}", "one"),
    ("{.data.kinds[*].tags[*]}", "a b b c d"),
];

/// What kubectl 1.27 printed of the object in `cases.json`: templates of every feature, with their results. Of errors the words may differ.
#[test]
fn templates_give_what_kubectl_gives() {
    let object: Value = serde_json::from_str(include_str!("cases.json")).expect("JSON");
    let mut differing = Vec::new();
    for case in include_str!("cases.tsv").lines() {
        let (template, wanted) = case.split_once('\t').expect("two columns");
        let known = DIFFERENCES.iter().find(|(known, _)| *known == template);
        let wanted = known.map_or(wanted, |(_, own)| own);
        let parsed = Template::parse(template);
        let given = parsed.and_then(|parsed| parsed.render(&object, MissingFields::Skipped));
        let given = match given {
            Ok(text) => text.replace('\\', "\\\\").replace('\n', "\\n").replace('\t', "\\t"),
            Err(error) => format!("error: {error}"),
        };
        let are_errors = given.starts_with("error: ") && wanted.starts_with("error: ");
        if given != wanted && !are_errors {
            differing.push(format!("{template}\n  kubectl: {wanted}\n  orchctl: {given}"));
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

#[test]
fn documented_templates() {
    for (template, wanted) in [
        ("text", "text"),
        ("kind is {.kind}", "kind is List"),
        ("{['kind']}{[\"kind\"]}{$.kind}{@.kind}", "ListListListList"),
        ("{..name}", "127.0.0.1 127.0.0.2 myself e2e"),
        ("{.items[*].metadata.name}", "127.0.0.1 127.0.0.2"),
        ("{.users[0].name}{.users[-1].name}{.users[-2:].name}", "myselfe2emyself e2e"),
        (
            "{.items[*]['metadata.name', 'status.capacity']}",
            "127.0.0.1 127.0.0.2 {\"cpu\":\"4\"} {\"cpu\":\"8\"}",
        ),
        ("{.users[?(@.name==\"e2e\")].user.password}", "secret"),
        ("{.users[?(@.name=='e2e')].user.password}", "secret"),
        ("{.items[0].metadata.labels.orch\\.io/hostname}", "127.0.0.1"),
        ("{.items[0].metadata.labels['orch\\.io/hostname']}", "127.0.0.1"),
        (
            "{range .items[*]}[{.metadata.name}, {.status.capacity}] {end}.",
            "[127.0.0.1, {\"cpu\":\"4\"}] [127.0.0.2, {\"cpu\":\"8\"}] .",
        ),
        (
            "{range .items[*]}{.metadata.name}{\"\\t\"}{range .status.addresses[*]}{.address}{','}{end}{'\\n'}{end}",
            "127.0.0.1\t127.0.0.1,\n127.0.0.2\t127.0.0.2,127.0.0.3,\n",
        ),
        ("{.items[?(@.status.n)].metadata.name}", "127.0.0.2"),
        (
            "{.items[?(@.status.n>=3)].metadata.name}{.items[?(@.status.n>3)].metadata.name}",
            "127.0.0.2",
        ),
        ("{.items[?(@.metadata.name!=\"127.0.0.1\")].metadata.name}", "127.0.0.2"),
        ("{.items[0:2:2].metadata.name}", "127.0.0.1"),
        ("{.items[0,1].kind}", "None None"),
        ("{.items[1].status.addresses[?(@.type==\"another\")].address}", "127.0.0.3"),
        ("{.flag}{.none}{.number}{.missing}", "true<nil>1.5"),
        ("{.users[1].user}", "{\"password\":\"secret\",\"username\":\"admin\"}"),
        ("{range .none[*]}x{end}y", "y"),
        ("{.users[2:2]}", ""),
        ("{ .kind }", "List"),
        ("{range .users[*]}{.name} ", "myself e2e "),
    ] {
        assert_eq!(render(template).as_deref(), Ok(wanted), "{template}");
    }
}

#[test]
fn wrong_templates_are_refused() {
    for (template, part) in [
        ("{.kind", "unclosed action"),
        ("{.items[0}", "unterminated array"),
        ("{\"abc}", "unterminated quoted string"),
        ("{end}", "nothing to end"),
        ("{hello}", "unrecognized identifier hello"),
        ("{.items[abc]}", "invalid array index abc"),
        ("{.items[?(@.x=)]}", "operator"),
        ("{.items[5].x}", "array index out of bounds: index 5, length 2"),
        ("{.items[-3].x}", "array index out of bounds"),
        ("{.kind[0]}", "is not an array"),
        ("{.items[0:2:0]}", "step must be > 0"),
    ] {
        let error = render(template).expect_err(template);
        assert!(error.contains(part), "{template}: {error}");
    }
}

#[test]
fn missing_fields_are_errors_if_refused() {
    let parsed = Template::parse("{.a.b}").expect("valid");
    let error = parsed.render(&sample(), MissingFields::Refused).expect_err("missing");
    assert_eq!(error.to_string(), "a is not found");
}

#[test]
fn nesting_and_results_are_bounded() {
    let brackets = format!("{{.a{}{}}}", "[?(@.b".repeat(100), ")]".repeat(100));
    assert!(Template::parse(&brackets).is_err());
    assert!(Template::parse(&"{range .a}".repeat(100)).is_err());
    assert!(Template::parse(&"x".repeat(TEMPLATE_LEN_MAX + 1)).is_err());
    let mut deep = json!(1);
    for _ in 0..60 {
        deep = json!([deep, 1]);
    }
    // Steps, ranges in ranges, and unions of many members multiply their results.
    for template in [
        format!("{{{}}}", "..".repeat(40)),
        format!("{}{{end}}", "{range ..}".repeat(10)),
        format!("{{{}[{}0]}}", "[0,0]".repeat(18), "0,".repeat(50)),
    ] {
        let parsed = Template::parse(&template).expect("valid");
        let error = parsed.render(&deep, MissingFields::Skipped).expect_err(&template);
        assert_eq!(error.to_string(), "more than 1000000 results");
    }
    let ranges = Template::parse(&"{range ..}".repeat(10)).expect("valid");
    assert!(ranges.find(&deep, MissingFields::Skipped).is_err());
}

#[test]
fn relaxed_paths_need_no_braces() {
    for text in ["{.kind}", ".kind", "kind", "{kind}", "['kind']"] {
        let path = Path::parse_relaxed(text).expect(text);
        assert_eq!(
            path.find(&sample(), MissingFields::Skipped).expect(text),
            [&json!("List")],
            "{text}"
        );
    }
    assert!(Path::parse_relaxed("{.a}{.b}").is_err());
}
