//! Functions of newer releases of Kubernetes: addresses, quantities and named formats.

use super::{errors_of, schema, value, verdict};

#[test]
fn addresses_and_blocks_are_values() {
    for rule in [
        "isIP('10.0.0.1') && isIP('::1') && ip('10.0.0.1').family() == 4 && ip('::1').family() == 6",
        "['10.0.0.256', '10.0.0', '010.0.0.1', ':::1', '', 'a', '10.0.0.1/8'].all(t, !isIP(t))",
        "['::ffff:1.2.3.4', 'fe80::1%eth0', '1.2.3.4%eth0'].all(t, !isIP(t))",
        "ip('2001:DB8::0:1') == ip('2001:db8::1') && ip('::1') != ip('::2') && ip('::1') != null",
        "string(ip('2001:DB8::0:1')) == '2001:db8::1' && string(cidr('10.0.0.1/8')) == '10.0.0.1/8'",
        "ip.isCanonical('2001:db8::1') && !ip.isCanonical('2001:DB8::1') && !ip.isCanonical('1::0:1')",
        "ip('0.0.0.0').isUnspecified() && ip('::').isUnspecified() && !ip('::1').isUnspecified()",
        "ip('127.9.9.9').isLoopback() && ip('::1').isLoopback() && !ip('10.0.0.1').isLoopback()",
        "['224.0.0.1', 'ff02::1', 'ff12::1'].all(t, ip(t).isLinkLocalMulticast())",
        "['224.0.1.1', 'fd00::1', 'ff05::1'].all(t, !ip(t).isLinkLocalMulticast())",
        "['169.254.1.1', 'fe80::1', 'febf::1'].all(t, ip(t).isLinkLocalUnicast())",
        "['192.168.0.1', 'fd80::1', 'fec0::1'].all(t, !ip(t).isLinkLocalUnicast())",
        "['192.168.0.1', '2001:db8::1', 'fd00::1', '240.0.0.1'].all(t, ip(t).isGlobalUnicast())",
        "['255.255.255.255', '0.0.0.0', '::', '127.0.0.1', '224.0.1.1', 'ff00::1', 'fe80::1', '169.254.0.1'].all(t,
            !ip(t).isGlobalUnicast())",
        "['10.0.0.0/8', '10.0.0.1/8', '::/0', '1.2.3.4/32', '::1/128'].all(t, isCIDR(t))",
        "['10.0.0.0', '10.0.0.0/33', '::/129', '10.0.0.0/08', '10.0.0.0/+8', '10.0.0.0/', '/8',
            '10.0.0.0/8/8', '::ffff:1.2.3.0/120', 'fe80::1%a/64'].all(t, !isCIDR(t))",
        "cidr('10.1.0.0/16').containsIP('10.1.2.3') && !cidr('10.1.0.0/16').containsIP('10.2.0.0')",
        "cidr('10.1.0.9/16').containsIP(ip('10.1.0.0')) && !cidr('::/0').containsIP(ip('10.0.0.1'))",
        "cidr('10.0.0.0/8').containsCIDR('10.9.8.7/24') && cidr('::/8').containsCIDR(cidr('::/8'))",
        "!cidr('10.0.0.0/24').containsCIDR('10.0.0.0/23') && !cidr('::/0').containsCIDR('0.0.0.0/0')",
        "cidr('10.0.0.1/8').ip() == ip('10.0.0.1') && cidr('10.0.0.1/8').prefixLength() == 8",
        "cidr('10.0.0.1/8').masked() == cidr('10.0.0.0/8') && cidr('10.0.0.1/8') != cidr('10.0.0.0/8')",
        "dyn(ip('::1')) != dyn('::1') && ip(dyn('::1')) in [ip('::2'), ip('::1')]",
        "type(ip('::1')) == type(ip('10.0.0.1')) && type(ip('::1')) != type(cidr('::1/128'))",
        // A variable may be called as the function.
        "['10.0.0.1'].all(ip, ip.startsWith('10.') && isIP(ip))",
    ] {
        holds(rule);
    }
}

#[test]
fn quantities_are_values() {
    for rule in [
        "['20', '20M', '20Mi', '1.3G', '-1', '1e3', '100m', '.5'].all(t, isQuantity(t))",
        "['20Mo', '10Mm', '200K', 'Mi', '', '1,3G', ' 1', 'Three'].all(t, !isQuantity(t))",
        "quantity('200M') == quantity('0.2G') && quantity('200M') != quantity('0.3G')",
        "quantity('50M').isLessThan(quantity('50Mi')) && !quantity('50M').isLessThan(quantity('50M'))",
        "quantity('50Mi').isGreaterThan(quantity('50M')) && !quantity('1').isGreaterThan(quantity('1'))",
        "quantity('200M').compareTo(quantity('0.2G')) == 0 && quantity('1').compareTo(quantity('2')) == -1",
        "quantity('50k').add(quantity('20')) == quantity('50.02k') && quantity('50k').add(20) == quantity('50020')",
        "quantity('50k').add(20).sub(quantity('100k')).sub(-50000).asInteger() == 20",
        "quantity('50k').isInteger() && !quantity('1500m').isInteger() && !quantity('1e20').isInteger()",
        "quantity('50.703k').asApproximateFloat() == 50703.0 && quantity('-1m').asApproximateFloat() == -0.001",
        "quantity('5').sign() == 1 && quantity('0').sign() == 0 && sign(quantity('-5m')) == -1",
    ] {
        holds(rule);
    }
}

#[test]
fn formats_say_what_is_wrong() {
    for (format, good, bad) in [
        ("dns1123Label", "my-name", "my.name"),
        ("dns1123Subdomain", "my.name", "my..name"),
        ("dns1035Label", "my-name", "1-name"),
        ("qualifiedName", "example.com/My_Name", "a/b/c"),
        ("portName", "http-1", "HTTP"),
        ("dns1123LabelPrefix", "my-", "my_"),
        ("dns1123SubdomainPrefix", "my.prefix.-", "my_"),
        ("dns1035LabelPrefix", "my-", "1a-"),
        ("labelValue", "My-Value", "a!"),
        ("uri", "http://example.com", "example.com"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
        ("byte", "aGVsbG8=", "aGVsbG8"),
        ("date", "2020-01-01", "2020-01-32"),
        ("datetime", "2020-01-01T00:00:00Z", "2020-01-32T00:00:00Z"),
    ] {
        holds(&format!("!format.{format}().validate('{good}').hasValue()"));
        holds(&format!("format.{format}().validate('{bad}').value().all(t, t != '')"));
        holds(&format!("format.named('{format}').value() == format.{format}()"));
    }
    let long = "a".repeat(63);
    holds(&format!("!format.dns1123LabelPrefix().validate('{long}-').hasValue()"));
    for rule in [
        "format.dns1123LabelPrefix().validate('-').hasValue()",
        "format.uri() != format.uuid() && !format.named('nothing').hasValue()",
        "format.byte().validate('a') == optional.of(['invalid base64'])",
        "format.datetime().validate('a') == optional.of(['invalid datetime'])",
        "format.byte().validate('aGk=') == optional.none()",
        "format.dns1123Label().validate('a b').value()[0].startsWith('a lowercase RFC 1123 label must')",
        // An optional without a value is no null, in Kubernetes either.
        "format.byte().validate('aGk=') != null && format.byte().validate('a') != null",
    ] {
        holds(rule);
    }
}

/// Checks that a rule holds, and that its opposite does not.
fn holds(rule: &str) {
    assert_eq!(verdict(rule, None), Vec::<String>::new(), "{rule}");
    assert_eq!(verdict(&format!("!({rule})"), None).len(), 1, "{rule}");
}

#[test]
fn what_libraries_cannot_do_is_refused() {
    let bad_bits = r#"netip.ParsePrefix("10.0.0.0/x"): bad bits after slash: "x" evaluating rule"#;
    for (rule, expected) in [
        ("isIP(cidr('::/0'))", "found no matching overload for 'isIP' applied to '(net.CIDR)'"),
        ("cidr(192168).masked() == null", "found no matching overload for 'cidr'"),
        ("ip('::1') == '::1'", "overload for '_==_' applied to '(net.IP, string)'"),
        ("ip('::1') < ip('::2')", "found no matching overload for '_<_'"),
        ("ip('::1').isCanonical()", "undeclared reference to 'isCanonical'"),
        ("ip('::1').prefixLength() == 1", "found no matching overload for 'prefixLength'"),
        ("quantity('1') + quantity('1') == null", "found no matching overload for '_+_'"),
        ("quantity('1').add('1k') == null", "applied to 'kubernetes.Quantity.(string)'"),
        ("format.nothing() == null", "undeclared reference to 'nothing'"),
        ("format.uri() == null && format == null", "undeclared reference to 'format'"),
        ("format.uri().validate(1).hasValue()", "to 'kubernetes.NamedFormat.(int)'"),
        ("format.uri().validate('/')", "must evaluate to a bool"),
        ("ip('10.0.0.256') == null", "ParseAddr(\"10.0.0.256\"): unable to parse IP evaluating"),
        ("ip.isCanonical('a')", "IP Address \"a\" parse error during conversion from string"),
        ("ip('fe80::1%a') == null", "IP address \"fe80::1%a\" with zone value is not allowed"),
        ("ip('::ffff:1.2.3.4') == null", "IPv4-mapped IPv6 address \"::ffff:1.2.3.4\" is not"),
        ("cidr('10.0.0.0') == null", "network address parse error during conversion from string"),
        ("cidr('10.0.0.0/x') == null", bad_bits),
        ("cidr('10.0.0.0/33') == null", "prefix length out of range evaluating rule"),
        ("cidr('::/0').containsIP('a')", "ParseAddr(\"a\"): unable to parse IP evaluating rule"),
        ("quantity('10Mo') == null", "quantities must match the regular expression"),
        ("quantity('10Mm') == null", "unable to parse quantity's suffix evaluating rule"),
        ("quantity('1500m').asInteger() == 1", "cannot convert value to integer evaluating rule"),
        ("format.named('a').value() == null", "optional.none() dereference evaluating rule"),
        ("ip(dyn(1)) == null", "no such overload"),
    ] {
        let found = verdict(rule, None);
        assert!(found.len() == 1 && found[0].contains(expected), "{rule}: {found:?}");
    }
}

#[test]
fn definitions_of_the_gateway_api_are_accepted() {
    let properties = r#"{"hosts":{"type":"array","maxItems":16,
            "items":{"type":"string","minLength":1,"maxLength":253},
            "x-kubernetes-validations":[{"rule":"self.all(h, !isIP(h))","message":"no addresses"}]},
        "name":{"type":"string","maxLength":63,"x-kubernetes-validations":[
            {"rule":"size(self) == 0 || format.dns1123Label().validate(self) == null"}]},
        "namespace":{"type":"string","maxLength":63,"x-kubernetes-validations":[
            {"rule":"!format.dns1123Label().validate(self).hasValue()",
            "messageExpression":"format.dns1123Label().validate(self).value().join(', ')"}]}}"#;
    assert_eq!(errors_of(properties), Vec::<String>::new());
    let schema = schema(properties);
    let complaints = |object: &str| -> Vec<String> {
        schema.validate(&value(object), None).iter().map(ToString::to_string).collect()
    };
    let good = complaints(r#"{"hosts":["a.example.com","*.b"],"name":"","namespace":"ns"}"#);
    assert_eq!(good, Vec::<String>::new());
    let bad = complaints(r#"{"hosts":["a","10.0.0.1"],"namespace":"a.b"}"#);
    assert_eq!(bad.len(), 2, "{bad:?}");
    assert!(bad[0].ends_with("no addresses") && bad[1].contains("a lowercase RFC 1123 label"));
    // Never null, so that Kubernetes refuses every name as well.
    assert_eq!(complaints(r#"{"name":"web"}"#).len(), 1);
}

#[test]
fn texts_of_any_length_in_errors_are_cut() {
    let rules = ["ip(self) == null", "cidr(self) == null", "cidr('::/' + self) == null"];
    let rules = rules.map(|rule| format!(r#"{{"rule":"{rule}"}}"#)).join(",");
    let properties = format!(r#"{{"s":{{"type":"string","x-kubernetes-validations":[{rules}]}}}}"#);
    let object = value(&format!(r#"{{"s":"{}"}}"#, "x".repeat(200_000)));
    let found = schema(&properties).validate(&object, None);
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found.iter().all(|error| error.message.len() < 2_000), "{found:?}");
}
