//! Tests of rules: what they mean, what is refused when they are written, and that none runs long.

mod libraries;
mod messages;
mod optional_old_self;
mod values;

use apiserver_schema::Value;

use super::cel_types::declare;
use super::{Checker, Next};
use crate::cel::cost::PASSED;
use crate::cel::program::{Program, RuleTypes};
use crate::cel::signatures::SIGNATURES;
use crate::cel::types::SizedType;
use crate::errors::{ErrorList, Path};
use crate::pattern::Patterns;
use crate::testing::{definition, definition_with, schema, value};

/// The properties that rules of these tests see.
const PROPERTIES: &str = r#"{"spec":{"type":"object","properties":{
    "n":{"type":"integer"},"m":{"type":"integer"},"x":{"type":"number"},"b":{"type":"boolean"},
    "s":{"type":"string","maxLength":100},"t":{"type":"string","maxLength":100},
    "date":{"type":"string","format":"date"},"at":{"type":"string","format":"date-time"},
    "wait":{"type":"string","format":"duration"},"raw":{"type":"string","format":"byte"},
    "port":{"x-kubernetes-int-or-string":true},
    "list":{"type":"array","maxItems":10,"items":{"type":"integer"}},
    "names":{"type":"array","maxItems":10,"items":{"type":"string","maxLength":20}},
    "set":{"type":"array","maxItems":10,"x-kubernetes-list-type":"set","items":{"type":"string","maxLength":20}},
    "keyed":{"type":"array","maxItems":10,"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],
        "items":{"type":"object","required":["k"],"properties":{"k":{"type":"string"},"v":{"type":"integer"}}}},
    "map":{"type":"object","maxProperties":10,"additionalProperties":{"type":"integer"}},
    "a.b-c":{"type":"integer"},"namespace":{"type":"string"},"none":{"type":"integer"},
    "inner":{"type":"object","properties":{"v":{"type":"integer"}}},
    "other":{"type":"object","properties":{"v":{"type":"integer"}}}}}}"#;

const OBJECT: &str = r#"{"apiVersion":"e.com/v1","kind":"W","metadata":{"name":"w"},"spec":{
    "n":3,"m":-2,"x":1.5,"b":true,"s":"hello","t":"aé","date":"2024-02-29","at":"2024-02-29T10:30:15Z","wait":"1h30m",
    "raw":"aGk=","port":8080,"list":[1,2,3],"names":["a","b"],"set":["x","y"],"keyed":[{"k":"a","v":1},{"k":"b","v":2}],
    "map":{"k":1,"l":2},"a.b-c":7,"namespace":"ns","inner":{"v":1}}}"#;

fn types(decl: &SizedType) -> RuleTypes<'_> {
    RuleTypes { decl, has_optional_old: false }
}

/// What a rule of the root says about the object: nothing if it holds.
fn verdict(rule: &str, old: Option<&str>) -> Vec<String> {
    let properties = value(PROPERTIES);
    let mut text = Vec::new();
    apiserver_schema::value::write_json(&mut text, &properties);
    let properties = String::from_utf8(text).expect("text");
    let mut quoted = Vec::new();
    apiserver_schema::value::write_json_string(&mut quoted, rule);
    let rule = String::from_utf8(quoted).expect("text");
    let schema = format!(
        r#"{{"type":"object","properties":{properties},"x-kubernetes-validations":[{{"rule":{rule}}}]}}"#
    );
    let definition = crate::read_definition(&definition_with(&schema)).expect("a definition");
    let old = old.map(value);
    let version = definition.versions.first().expect("a version");
    version.schema.validate(&value(OBJECT), old.as_ref()).iter().map(ToString::to_string).collect()
}

#[test]
fn rules_that_hold() {
    for rule in HOLD.lines().map(str::trim).filter(|rule| !rule.is_empty()) {
        assert_eq!(verdict(rule, None), Vec::<String>::new(), "{rule}");
    }
}

const HOLD: &str = r#"
    self.spec.n == 3 && self.spec.m == -2
    self.spec.n + self.spec.m * 2 == -1
    7 / 2 == 3 && 7 % 2 == 1 && -7 / 2 == -3
    self.spec.x == 1.5 && self.spec.x * 2.0 == 3.0
    self.spec.b && !(!self.spec.b) && !!self.spec.b
    self.spec.n > 2 ? self.spec.b : false
    self.spec.s == 'hello' && self.spec.s + " w" == "hello w"
    size(self.spec.t) == 2 && self.spec.t.size() == 2
    self.spec.s.startsWith('he') && self.spec.s.endsWith("lo") && self.spec.s.contains("ell")
    self.spec.s.matches('^h.*o$') && matches(self.spec.s, "l+")
    self.spec.s.charAt(1) == 'e' && self.spec.s.indexOf('l') == 2 && self.spec.s.lastIndexOf('l') == 3
    self.spec.s.indexOf('l', 3) == 3 && self.spec.s.lastIndexOf('l', 2) == 2 && self.spec.s.indexOf('z') == -1
    self.spec.s.substring(1, 3) == 'el' && self.spec.s.substring(3) == 'lo'
    self.spec.s.upperAscii() == 'HELLO' && 'A B'.lowerAscii() == 'a b' && ' a '.trim() == 'a'
    self.spec.s.replace('l', 'L') == 'heLLo' && self.spec.s.replace('l', 'L', 1) == 'heLlo'
    'a,b,c'.split(',') == ['a', 'b', 'c'] && 'a,b,c'.split(',', 2) == ['a', 'b,c'] && 'ab'.split('') == ['a', 'b']
    ['a', 'b'].join('-') == 'a-b' && ['a', 'b'].join() == 'ab'
    'abc 123'.find('[0-9]+') == '123' && 'abc'.find('[0-9]+') == '' && '1 2 3'.findAll('[0-9]') == ['1', '2', '3']
    '1 2 3'.findAll('[0-9]', 2) == ['1', '2']
    self.spec.date == timestamp('2024-02-29T00:00:00Z') && self.spec.date.getMonth() == 1
    self.spec.at.getHours() == 10 && self.spec.at.getHours('+02:00') == 12 && self.spec.at.getDayOfWeek() == 4
    self.spec.at - self.spec.date == duration('10h30m15s') && self.spec.at > self.spec.date
    self.spec.wait == duration('90m') && self.spec.wait.getMinutes() == 90 && string(self.spec.wait) == '5400s'
    self.spec.at + duration('1h') > self.spec.at
    self.spec.raw == b'hi' && size(self.spec.raw) == 2 && string(self.spec.raw) == 'hi'
    self.spec.port == 8080 && type(self.spec.port) == int
    type(self.spec.port) == int ? self.spec.port < 9000 : self.spec.port.endsWith('%')
    self.spec.list.all(i, i > 0) && self.spec.list.exists(i, i == 2) && self.spec.list.exists_one(i, i == 2)
    self.spec.list.map(i, i * 2) == [2, 4, 6] && self.spec.list.filter(i, i > 1) == [2, 3]
    self.spec.list.map(i, i > 1, i * 2) == [4, 6]
    self.spec.list.isSorted() && self.spec.list.sum() == 6 && self.spec.list.min() == 1 && self.spec.list.max() == 3
    self.spec.list.indexOf(2) == 1 && self.spec.list.lastIndexOf(9) == -1 && 2 in self.spec.list
    self.spec.list[0] == 1 && self.spec.list + [4] == [1, 2, 3, 4] && size(self.spec.list) == 3
    self.spec.names.all(n, n.size() == 1) && self.spec.names.exists(n, self.spec.list.exists(i, n == 'a' && i == 1))
    self.spec.set == ['x', 'y'] && self.spec.set + self.spec.set == self.spec.set
    self.spec.keyed.exists(i, i.k == 'a' && i.v == 1) && self.spec.keyed.map(i, i.v).sum() == 3
    self.spec.map.k == 1 && self.spec.map['l'] == 2 && 'k' in self.spec.map && !('z' in self.spec.map)
    self.spec.map.all(k, self.spec.map[k] > 0) && {'a': 1}.a == 1 && {'a': 1, 'b': 2} == {'b': 2, 'a': 1}
    self.spec.a__dot__b__dash__c == 7 && self.spec.__namespace__ == 'ns'
    has(self.spec.namespace) && self.spec.namespace == 'ns'
    has(self.spec.n) && !has(self.spec.none) && has(self.spec.map.k) && !has(self.spec.map.z)
    !has(self.spec.none) || self.spec.none > 0
    self.spec.none > 0 || true
    !(false && self.spec.none > 0) && (true || self.spec.none > 0)
    self.spec.list.exists(i, self.spec.list[5] == 1 || i == 3)
    self.spec.inner == self.spec.inner && self.metadata.name == 'w' && self.kind == 'W' && self.apiVersion == 'e.com/v1'
    url('https://user@h.com:80/a/b?q=1&q=2').getHost() == 'h.com:80' && url('https://[::1]:80/').getHostname() == '::1'
    url('https://h.com:80/a/b?q=1&q=2').getQuery()['q'] == ['1', '2'] && url('/p').getEscapedPath() == '/p'
    isURL('https://h.com') && !isURL('h com') && url('https://h.com:80/').getPort() == '80' && url('https://h/').getScheme() == 'https'
    int('12') == 12 && string(12) == '12' && double(3) == 3.0 && uint(3) == 3u && int(3.9) == 3 && string(1.5) == '1.5'
    'a\n\x41\u00e9\101' == "a\nA\u00e9A" && r'\n' == '\\n' && '''a'b''' == "a'b" && b'\xff' != b'\x00'
    0x10 == 16 && 1e3 == 1000.0 && -9223372036854775808 < 0 // a comment
    self.spec.list.filter(i, i > 9).sum() == 0 && self.spec.list.filter(i, i > 9).map(i, 1.5).sum() + 1.5 == 1.5
    [self.spec.wait].filter(d, d < duration('1s')).sum() == duration('0s') && [].sum() == 0
    bool('true') && !bool('F') && int(duration('1us')) == 1000 && duration(1500) == duration('1.5us') && bool(self.spec.b)
    self.spec.at.getHours('Europe/Berlin') == 11 && self.spec.at.getHours('America/New_York') == 5 && self.spec.at.getHours('UTC') == 10
    self.spec.at.getMinutes('-02:15') == 15 && self.spec.at.getHours('-02:15') == 8
    type(self.spec.at) == google.protobuf.Timestamp && type(self.spec.wait) == google.protobuf.Duration
    url('https://u:p@h.com:80/p?q=v#f').getQuery() == {'q': ['v']} && url('https://h/p#f').getEscapedPath() == '/p'
    url('https://h/a b/%20/é').getEscapedPath() == '/a%20b/%20/%C3%A9' && url('https://h?').getQuery() == {}
    url('https://h/?k 1=v 1&a;b=c&d=%zz').getQuery() == {'k 1': ['v 1']} && url('//h/p').getHost() == 'h'
    isURL('mailto:a@b') && url('mailto:a@b').getEscapedPath() == '' && !isURL('https://a:b:c/') && !isURL('../p')
    dyn(1) == dyn(1.0) && type(1) == int && type('') == string && type([]) == list
"#;

#[test]
fn rules_that_fail_say_so() {
    let cases = [
        ("self.spec.n > 3", "<nil>: Invalid value: \"object\": failed rule: self.spec.n > 3"),
        (
            "self.spec.none > 0",
            "<nil>: Invalid value: \"object\": no such key: none evaluating rule: self.spec.none > 0",
        ),
        ("self.spec.list[5] == 1", "index out of bounds: 5 evaluating rule"),
        ("self.spec.map['z'] == 1", "no such key: z evaluating rule"),
        ("1 / (self.spec.n - 3) == 1", "division by zero evaluating rule"),
        ("1 % (self.spec.n - 3) == 1", "modulus by zero evaluating rule"),
        ("9223372036854775807 + self.spec.n > 0", "integer overflow evaluating rule"),
        (
            "self.spec.port.startsWith('8')",
            "'no such overload': call arguments did not match a supported operator",
        ),
        ("self.spec.s.matches(self.spec.s + '(')", "Illegal regex: error parsing regexp"),
        ("duration('x') == self.spec.wait", "time: invalid duration"),
        ("self.spec.list.filter(i, i > 5).min() == 1", "min called on empty list"),
        ("self.spec.s.charAt(9) == 'a'", "index out of range: 9"),
        ("bool('yes')", "invalid bool"),
        ("self.spec.at.getHours('europe/berlin') == 11", "unknown time zone europe/berlin"),
    ];
    for (rule, expect) in cases {
        let found = verdict(rule, None);
        assert_eq!(found.len(), 1, "{rule}: {found:?}");
        assert!(found[0].contains(expect), "{rule}: {found:?}");
    }
}

#[test]
fn rules_compare_with_the_stored_object() {
    let rule = "self.spec.n >= oldSelf.spec.n";
    assert_eq!(verdict(rule, None), Vec::<String>::new());
    assert_eq!(verdict(rule, Some(r#"{"spec":{"n":3}}"#)), Vec::<String>::new());
    assert_eq!(verdict(rule, Some(r#"{"spec":{"n":4}}"#)).len(), 1);
}

#[test]
fn items_with_keys_are_compared_with_their_stored_versions() {
    let schema = schema(
        r#"{"l":{"type":"array","maxItems":5,"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],
        "items":{"type":"object","required":["k"],"properties":{"k":{"type":"string"},"v":{"type":"integer"}},
        "x-kubernetes-validations":[{"rule":"self.v >= oldSelf.v","message":"must not shrink"}]}}}"#,
    );
    let old = value(r#"{"l":[{"k":"a","v":5},{"k":"b","v":1}]}"#);
    let good = value(r#"{"l":[{"k":"c","v":0},{"k":"b","v":1},{"k":"a","v":5}]}"#);
    assert_eq!(schema.validate(&good, Some(&old)), []);
    let bad = value(r#"{"l":[{"k":"b","v":1},{"k":"a","v":4}]}"#);
    let found: Vec<String> =
        schema.validate(&bad, Some(&old)).iter().map(ToString::to_string).collect();
    assert_eq!(found, ["l[1]: Invalid value: \"object\": must not shrink"]);
}

/// The errors of a definition whose spec has this rule.
fn refusal(rule: &str) -> String {
    let schema = schema(PROPERTIES);
    let node = schema.root.property("spec").expect("a property");
    let decl = declare(node).expect("a type");
    Program::compile(rule, types(&decl), &mut Patterns::default())
        .map(|_| String::new())
        .unwrap_or_else(|why| why.to_string())
}

#[test]
fn rules_that_are_wrong_are_refused_when_they_are_written() {
    let cases = [
        ("self.n", "cel expression must evaluate to a bool"),
        ("self.zz == 1", "ERROR: <input>:1:5: undefined field 'zz'"),
        ("zz == 1", "undeclared reference to 'zz' (in container '')"),
        ("self.n == 'a'", "found no matching overload for '_==_' applied to '(int, string)'"),
        ("self.n + self.x == 1", "found no matching overload for '_+_' applied to '(int, double)'"),
        ("self.n && self.b", "found no matching overload for '_&&_'"),
        ("!self.n", "found no matching overload for '!_' applied to '(int)'"),
        ("self.s.size(1) == 1", "found no matching overload for 'size' applied to 'string.(int)'"),
        ("self.s.foo()", "undeclared reference to 'foo'"),
        ("self.list.all(i, i)", "expected type 'bool' but found 'int'"),
        ("self.inner.all(i, true)", "cannot be range of a comprehension"),
        ("self.n.all(i, true)", "cannot be range of a comprehension"),
        ("self.list['a'] == 1", "found no matching overload for '_[_]'"),
        ("self.b ? 1 : 'a'", "found no matching overload for '_?_:_'"),
        ("self.n < 'a'", "found no matching overload for '_<_'"),
        ("'a' in self.list", "found no matching overload for '@in'"),
        ("self.inner < self.inner", "found no matching overload for '_<_'"),
        ("has(self)", "invalid argument to has() macro"),
        ("self.list.all(1, true)", "argument is not an identifier"),
        ("self.s.matches('(')", "error parsing regexp"),
        ("self.n ==", "Syntax error"),
        ("self.n == 1 1", "Syntax error: extraneous input"),
        ("'abc", "unterminated string literal"),
        ("self.n = 1", "Syntax error"),
        ("self.n == 99999999999999999999", "invalid number literal"),
        ("if == 1", "reserved identifier: if"),
        ("'\\q' == 'a'", "invalid escape sequence"),
        ("{[1]: 2} == {}", "unsupported key type: list(int)"),
        ("[1, 'a'] == []", "expected type 'int' but found 'string'"),
        ("[1, 1.5] == []", "expected type 'int' but found 'double'"),
        ("{'a': 1, 'b': 'c'} == {}", "expected type 'int' but found 'string'"),
        ("{'a': 1, 2: 1} == {}", "expected type 'string' but found 'int'"),
        ("self.inner == self.other", "found no matching overload for '_==_'"),
        ("(self.b ? self.inner : self.other).v == 1", "found no matching overload for '_?_:_'"),
        ("self.names.sum() == 'a'", "found no matching overload for 'sum'"),
        ("self.list.join() == 'a'", "found no matching overload for 'join'"),
        ("self.keyed.min() == self.keyed[0]", "found no matching overload for 'min'"),
        ("self.keyed.isSorted()", "found no matching overload for 'isSorted'"),
        ("self.list.indexOf('a') == 1", "found no matching overload for 'indexOf'"),
        ("'\\x+1' == 'a'", "invalid escape sequence"),
        ("b'\\u0041' == b'A'", "invalid escape sequence"),
        ("type(self.date) == google.protobuf.Date", "undeclared reference to 'google'"),
        ("optional.of({1: 2}).optMap(a, {a: a}).hasValue()", "unsupported key type: map(int, int)"),
        ("", "Syntax error"),
        ("#", "token recognition error"),
    ];
    for (rule, expect) in cases {
        let found = refusal(rule);
        assert!(found.contains(expect), "{rule}: {found}");
    }
}

#[test]
fn nested_and_long_rules_are_refused_without_overflow() {
    let mut cases = vec![
        format!("{}true{}", "(".repeat(5_000), ")".repeat(5_000)),
        format!("{}true", "!(".repeat(5_000)),
        format!("1{} == 1", "+1".repeat(5_000)),
        format!("self{} == 1", ".a".repeat(5_000)),
        format!("{}1{} == []", "[".repeat(5_000), "]".repeat(5_000)),
        format!("{}true", "true ? ".repeat(5_000)),
        format!("{}true", "true ? true : ".repeat(5_000)),
        format!("self{}", "[0]".repeat(5_000)),
        "a".repeat(200_000),
        format!("[{}] == []", "1,".repeat(40_000)),
    ];
    let mut nested = String::from("true");
    for at in 0..200 {
        nested = format!("[1].all(x{at}, {nested})");
    }
    cases.push(nested);
    for rule in cases {
        assert!(refusal(&rule).starts_with("compilation failed"), "{:.40}", rule);
    }
    let wide: Vec<String> = (0..1_000).map(|at| format!("self.n != {at}")).collect();
    assert_eq!(refusal(&wide.join(" && ")), "");
}

/// The errors of a definition with these properties.
fn errors_of(properties: &str) -> Vec<String> {
    let errors = crate::validate_definition(&definition(properties), None);
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn rules_that_cost_too_much_are_refused() {
    let nested = |limit: &str| {
        format!(
            r#"{{"l":{{"type":"array"{limit},"items":{{"type":"string"}},"x-kubernetes-validations":
            [{{"rule":"self.all(a, self.all(b, a != b || a == b))"}}]}}}}"#
        )
    };
    let found = errors_of(&nested(""));
    let path = "spec.validation.openAPIV3Schema.properties[l].x-kubernetes-validations[0].rule";
    assert!(
        found.iter().any(|error| error.starts_with(path)
            && error.contains(
                "Forbidden: estimated rule cost exceeds budget by factor of more than 100x"
            )),
        "{found:?}"
    );
    assert!(
        found
            .iter()
            .any(|error| error.contains("estimated rule cost total for entire OpenAPIv3 schema"))
    );
    let bounded = nested(r#","maxItems":10"#)
        .replace(r#"{"type":"string"}"#, r#"{"type":"string","maxLength":10}"#);
    assert_eq!(errors_of(&bounded), Vec::<String>::new());
}

#[test]
fn rules_that_are_cheap_alone_are_not_named_when_all_cost_too_much() {
    let errors = |pattern: &str| {
        let rule = format!(r#"{{"rule":"self.matches('{pattern}')"}}"#);
        let rules = vec![rule; 400].join(",");
        errors_of(&format!(r#"{{"s":{{"type":"string","x-kubernetes-validations":[{rules}]}}}}"#))
    };
    let total = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
    for (pattern, named) in [("^a+$", 0), ("^(a|b|c)+$", 0), ("^(a|b|c|d|e)+$", 4)] {
        let found = errors(pattern);
        assert_eq!(found.len(), named + 1, "{pattern}: {found:?}");
        assert!(found[named].contains(total), "{pattern}: {found:?}");
    }
}

#[test]
fn a_field_is_looked_for_at_no_estimated_cost() {
    assert_eq!(steps("has(self.inner.v)").0, 0);
    assert_eq!(steps("self.list.filter(i, i > 1).size() > 0").0, 165);
}

#[test]
fn rules_of_texts_without_a_limit_are_estimated_as_kubernetes_does() {
    let labels = r#"{"m":{"type":"object","maxProperties":4096,"additionalProperties":{"type":"string"},"x-kubernetes-validations":[
        {"rule":"self.all(key, key.size() != 0 && !key.contains('*') && key.matches('^[a-z]+$'))"}]}}"#;
    let durations = r#"{"l":{"type":"array","items":{"type":"object","properties":{"d":{"type":"string","x-kubernetes-validations":[
        {"rule":"duration(self) >= duration('1ms')"}]}}}}}"#;
    let choices = r#"{"l":{"type":"array","items":{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}},
        "x-kubernetes-validations":[{"rule":"(has(self.a) ? self.a : '') == '' || (has(self.b) && self.b != '')"}]}}}"#;
    for properties in [labels, durations, choices] {
        assert_eq!(errors_of(properties), Vec::<String>::new(), "{properties}");
    }
    for (properties, cheap, dear) in [
        (labels, "key.size() != 0", "self[key].contains('**********')"),
        (durations, "duration(self) >= duration('1ms')", "self.lowerAscii() == 'a'"),
    ] {
        let found = errors_of(&properties.replace(cheap, dear));
        assert!(found.iter().any(|error| error.contains("exceeds budget")), "{found:?}");
    }
}

#[test]
fn parts_of_made_lists_are_as_large_as_any_of_them() {
    let list = r#"{"type":"array","items":{"type":"integer"}}"#;
    let object = format!(r#"{{"type":"object","properties":{{"l":{list}}}}}"#);
    let found = |rule: &str| {
        errors_of(&format!(
            r#"{{"o":{{"type":"object","properties":{{"l":{list},"a":{object},"b":{object}}},
            "x-kubernetes-validations":[{{"rule":"{rule}"}}]}}}}"#
        ))
    };
    for (rule, is_dear) in [
        ("[[], [1]][1].all(x, x > 0)", false),
        ("[[[]], [self.l]][1][0].all(x, self.l.all(y, x == y))", true),
        ("([[]] + [self.l])[1].all(x, self.l.all(y, x == y))", true),
        ("(has(self.a) ? self.a : self.a).l.all(x, x > 0)", false),
    ] {
        let found = found(rule);
        let exceeds =
            found.iter().any(|error| error.contains("estimated rule cost exceeds budget"));
        assert_eq!((exceeds, found.is_empty()), (is_dear, !is_dear), "{rule}: {found:?}");
    }
}

#[test]
fn rules_of_items_count_for_each_item() {
    let items = |limit: &str| {
        format!(
            r#"{{"l":{{"type":"array"{limit},"items":{{"type":"string","maxLength":1000,"x-kubernetes-validations":
            [{{"rule":"self.matches('^a+$') && self.matches('^[a-z]*$')"}}]}}}}}}"#
        )
    };
    assert!(!errors_of(&items("")).is_empty());
    assert_eq!(errors_of(&items(r#","maxItems":10"#)), Vec::<String>::new());
}

#[test]
fn old_values_of_lists_without_keys_are_refused() {
    let found = errors_of(
        r#"{"l":{"type":"array","maxItems":5,"items":{"type":"integer","x-kubernetes-validations":[{"rule":"self == oldSelf"}]}}}"#,
    );
    assert!(found[0].contains(
        "oldSelf cannot be used on the uncorrelatable portion of the schema within spec.validation.openAPIV3Schema.properties[l]"
    ));
}

#[test]
fn a_run_ends_when_its_budget_is_used_up() {
    // A stored definition may be more expensive than one that may be written.
    let schema = schema(
        r#"{"l":{"type":"array","items":{"type":"integer"},"x-kubernetes-validations":[
        {"rule":"self.all(a, self.all(b, self.all(c, a + b + c >= 0)))"},{"rule":"false"}]}}"#,
    );
    let numbers = (0..2_000).map(|at| at.to_string()).collect::<Vec<_>>().join(",");
    let object = value(&format!(r#"{{"l":[{numbers}]}}"#));
    let found: Vec<String> =
        schema.validate(&object, None).iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("no further validation rules will be run due to call cost exceeds limit")
    );
}

#[test]
fn all_rules_of_an_object_share_a_budget() {
    let rules = vec![r#"{"rule":"self.all(a, self.all(b, a + b >= 0))"}"#; 100].join(",");
    let schema = schema(&format!(
        r#"{{"l":{{"type":"array","items":{{"type":"integer"}},"x-kubernetes-validations":[{rules}]}}}}"#
    ));
    let numbers = (0..250).map(|at| at.to_string()).collect::<Vec<_>>().join(",");
    let found = schema.validate(&value(&format!(r#"{{"l":[{numbers}]}}"#)), None);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].message.contains("running out of cost budget"));
}

#[test]
fn texts_do_not_grow_beyond_the_budget() {
    let doubling = "s.replace('', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa')";
    let mut rule = "self.s".to_owned();
    for _ in 0..20 {
        rule = doubling.replacen('s', &rule, 1);
    }
    let schema = schema(&format!(
        r#"{{"o":{{"type":"object","properties":{{"s":{{"type":"string"}}}},
        "x-kubernetes-validations":[{{"rule":"{rule} == ''"}}]}}}}"#
    ));
    let found = schema.validate(&value(r#"{"o":{"s":"abcdefgh"}}"#), None);
    assert!(found[0].message.contains("call cost exceeds limit"), "{found:?}");
}

/// The deepest expression that is parsed: `wrap` around `true` once more is refused.
fn deepest(wrap: impl Fn(&str, usize) -> String) -> String {
    let mut rule = "true".to_owned();
    for at in 0..1_000 {
        let next = wrap(&rule, at);
        if !refusal(&next).is_empty() {
            return rule;
        }
        rule = next;
    }
    panic!("nothing bounds the depth");
}

#[test]
fn the_deepest_rules_run_on_a_small_stack() {
    let rules = [
        deepest(|rule, at| format!("[1].all(x{at}, {rule})")),
        deepest(|rule, _| format!("({rule})")),
        deepest(|rule, _| format!("!({rule})")),
        deepest(|rule, _| format!("false ? false : {rule}")),
        deepest(|rule, _| format!("[{rule}][0]")),
        deepest(|rule, _| format!("{rule} == true")),
    ];
    for rule in rules {
        let run = move || {
            assert!(rule.len() > 90, "{rule}");
            let escaped = rule.replace('"', "\\\"");
            let schema = schema(&format!(
                r#"{{"o":{{"type":"object","properties":{{"a":{{"type":"string"}}}},"x-kubernetes-validations":[{{"rule":"{escaped}"}}]}}}}"#
            ));
            let found = schema.validate(&value(r#"{"o":{"a":"b"}}"#), None);
            assert!(found.iter().all(|error| error.message.contains("failed rule")), "{found:?}");
        };
        let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(run).expect("a thread");
        thread.join().expect("no overflow");
    }
}

/// The estimated and the real steps of a rule.
fn steps(rule: &str) -> (u64, u64) {
    steps_of(rule, PROPERTIES, &value(OBJECT))
}

/// The estimated and the real steps of a rule of `spec`.
fn steps_of(rule: &str, properties: &str, object: &Value) -> (u64, u64) {
    let schema = schema(properties);
    let node = schema.root.property("spec").expect("a property");
    let decl = declare(node).expect("a type");
    let program = Program::compile(rule, types(&decl), &mut Patterns::default()).expect(rule);
    let spec = object.as_map().and_then(|root| root.get("spec")).expect("a spec");
    let mut run = crate::eval::Run::new(&program, u64::MAX);
    assert!(run.run(node, spec, None).is_ok(), "{rule}");
    (program.cost, run.spent())
}

#[test]
fn no_part_of_a_rule_is_free() {
    const COUNT: u64 = 500;
    let times = |part: &str| part.repeat(usize::try_from(COUNT).unwrap_or(0));
    let items = times("1,");
    let keys: String = (0..COUNT).map(|at| format!("{at}: 1,")).collect();
    for rule in [
        format!("{} true", times("false || ")),
        format!("{} true", times("true && ")),
        format!("{} true", times("(false || false) || ")),
        format!("{} true", times("(true ? false : true) || ")),
        format!("{} true", times("'' != '' || ")),
        format!("{} true", times("'' < '' || ")),
        format!("{} true", times("'a'.startsWith('b') || ")),
        format!("{} true", times("''.contains('b') || ")),
        format!("[{items}1].size() > 0"),
        format!("{{{keys}500: 1}}.size() > 0"),
    ] {
        let (_, spent) = steps(&rule);
        let start: String = rule.chars().take(40).collect();
        assert!(spent >= COUNT / 10, "{start}: {spent}");
    }
}

#[test]
fn regular_expressions_that_objects_bring_cost_what_they_take() {
    let (_, short) = steps("self.s.matches('a' + 'b')");
    let (_, long) = steps("self.s.matches('[a-z]{1,500}' + 'b')");
    assert!(long > short + 1_000, "{long} {short}");
}

/// Bytes of the texts in [`LONG_PROPERTIES`].
const LONG: u64 = 100_000;

const LONG_PROPERTIES: &str = r#"{"spec":{"type":"object","properties":{
    "s":{"type":"string","maxLength":100000},"date":{"type":"string","format":"date","maxLength":100000},
    "wait":{"type":"string","format":"duration","maxLength":100000},"at":{"type":"string","format":"date-time"},
    "map":{"type":"object","maxProperties":10,"additionalProperties":{"type":"integer"}}}}}"#;

/// The real steps of `part`, for each of its runs. `names` are variables with their values, which are computed once.
fn long_steps(names: &[(String, String)], part: &str) -> u64 {
    const RUNS: u64 = 20;
    let text = format!("/{}", "a".repeat(usize::try_from(LONG - 1).unwrap_or(0)));
    let object = value(&format!(
        r#"{{"spec":{{"s":"{text}","date":"{text}","wait":"{text}","at":"2024-02-29T10:30:15Z","map":{{"{text}":1}}}}}}"#
    ));
    let items: String = (0..RUNS).map(|at| format!("{at},")).collect();
    let mut rule = format!("[{items}].all(run, {part})");
    for (name, value) in names.iter().rev() {
        rule = format!("[{value}].all({name}, {rule})");
    }
    steps_of(&rule, LONG_PROPERTIES, &object).1 / RUNS
}

#[test]
fn no_function_of_a_long_text_is_free() {
    for (name, target, args, _) in SIGNATURES {
        let is_long = target.chars().chain(args.chars()).any(|letter| "sUlSK*".contains(letter));
        // A list has its size at hand.
        if !is_long || (*name == "size" && format!("{target}{args}") == "l") {
            continue;
        }
        let value_of = |letter: char| match letter {
            's' | '*' => "self.s",
            'l' | 'S' | 'K' => "[self.s, self.s]",
            'U' => "url(self.s)",
            'T' => "self.at",
            'c' => "cidr('10.0.0.0/8')",
            'F' => "format.uri()",
            _ => "0",
        };
        let letters = target.chars().chain(args.chars()).enumerate();
        let names: Vec<(String, String)> =
            letters.map(|(at, letter)| (format!("v{at}"), value_of(letter).to_owned())).collect();
        let on = usize::from(!target.is_empty());
        let shown: Vec<&str> = names.iter().skip(on).map(|(name, _)| name.as_str()).collect();
        let receiver = if on == 1 { "v0." } else { "" };
        let call = format!("{receiver}{name}({})", shown.join(", "));
        let all: Vec<String> = names.iter().map(|(name, _)| format!("dyn({name})")).collect();
        // What fails must not end the rule.
        let spent = long_steps(&names, &format!("(type({call}) == int || true)"));
        let least = long_steps(&names, &format!("(type([{}]) == int || true)", all.join(", ")));
        // A list costs steps to make, which the call does not take.
        let made = 20;
        assert!(
            spent + made >= least + LONG / PASSED,
            "{call} of {target}, {args}: {spent} {least}"
        );
    }
}

#[test]
fn nothing_that_reads_a_long_text_is_free() {
    let name = "n".repeat(usize::try_from(LONG / 4).unwrap_or(0));
    let two_urls = [("u", "url(self.s)"), ("v", "url(self.s)")];
    let two_urls = two_urls.map(|(name, value)| (name.to_owned(), value.to_owned()));
    for (part, steps) in [
        ("self.s == self.s".to_owned(), LONG / PASSED),
        ("self.s <= self.s".to_owned(), LONG / PASSED),
        ("self.map == self.map".to_owned(), LONG / PASSED),
        ("self.s in self.map".to_owned(), LONG / PASSED),
        ("self.map[self.s] == 1".to_owned(), LONG / PASSED),
        ("self.map.all(key, self.map[key] == 1)".to_owned(), LONG / PASSED),
        ("(self.date == self.at || true)".to_owned(), LONG / PASSED),
        ("(self.wait == duration('1s') || true)".to_owned(), LONG / PASSED),
        ("u == v".to_owned(), LONG / PASSED),
        (format!("!has(self.map.{name})"), LONG / PASSED / 4),
        (format!("(self.map.{name} == 1 || true)"), LONG / PASSED / 4),
        (format!("[true].all({name}, {name})"), LONG / PASSED / 4),
    ] {
        let spent = long_steps(&two_urls, &part);
        let start: String = part.chars().take(40).collect();
        assert!(spent >= steps, "{start}: {spent}");
    }
}

#[test]
fn searches_that_read_on_for_every_match_cost_what_they_take() {
    let text = "A".repeat(5_000);
    let object = value(&format!(r#"{{"spec":{{"s":"{text}"}}}}"#));
    let found =
        steps_of("self.s.findAll('.*[^A-Z]|[A-Z]').size() == 5000", LONG_PROPERTIES, &object);
    assert!(found.1 > 100_000, "{found:?}");
}

#[test]
fn rules_of_nothing_but_a_literal_end_too() {
    let rules = vec![r#"{"rule":"true"}"#; 20].join(",");
    let schema = schema(&format!(
        r#"{{"l":{{"type":"array","items":{{"type":"integer","x-kubernetes-validations":[{rules}]}}}}}}"#
    ));
    let object = value(&format!(r#"{{"l":[{}1]}}"#, "1,".repeat(99)));
    for (budget, next) in [(1_999, Next::Stop), (2_000, Next::Continue)] {
        let mut errors = ErrorList::default();
        let mut checker = Checker { budget, errors: &mut errors };
        assert!(checker.value(&schema.root, &object, None, Path::ROOT) == next, "{budget}");
    }
}

#[test]
fn messages_of_failed_validation_rules_are_bounded() {
    let rules = [r#"{"rule":"timestamp(self) > timestamp(self)"}"#; 3].join(",");
    let schema =
        schema(&format!(r#"{{"s":{{"type":"string","x-kubernetes-validations":[{rules}]}}}}"#));
    let object = value(&format!(r#"{{"s":"{}"}}"#, "x".repeat(200_000)));
    let found = schema.validate(&object, None);
    assert_eq!(found.len(), 3);
    assert!(found.iter().all(|error| error.message.len() < 20_000));
}
