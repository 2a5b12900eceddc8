//! Tables and properties of quantities.

use super::*;
use proptest::prelude::*;

fn q(text: &str) -> Quantity {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn canonical_forms() {
    let cases = [
        ("0", "0"),
        ("-0", "0"),
        ("0Gi", "0"),
        ("1", "1"),
        ("+1", "1"),
        ("01.50", "1500m"),
        (".5", "500m"),
        ("5.", "5"),
        ("0.5", "500m"),
        ("-0.5", "-500m"),
        ("1500m", "1500m"),
        ("1000m", "1"),
        ("100", "100"),
        ("1000", "1k"),
        ("1500", "1500"),
        ("1000k", "1M"),
        ("12e6", "12e6"),
        ("1e3", "1e3"),
        ("1E3", "1e3"),
        ("1e2", "100"),
        ("100e-3", "100e-3"),
        ("1.5e3", "1500"),
        ("1024", "1024"),
        ("1024Ki", "1Mi"),
        ("1024Mi", "1Gi"),
        ("1536Mi", "1536Mi"),
        ("1000Ki", "1000Ki"),
        ("1Ki", "1Ki"),
        ("0.5Ki", "512"),
        ("1.5Gi", "1536Mi"),
        ("0.1Ki", "102400m"),
        ("0.9765625Ki", "1k"),
        ("-1Gi", "-1Gi"),
        ("1n", "1n"),
        ("0.1n", "1n"),
        ("1.1n", "2n"),
        ("-1.1n", "-2n"),
        ("1e-10", "1e-9"),
        ("1E", "1E"),
        ("7Ei", "7Ei"),
        ("8Ei", "9223372036854775807"),
        ("100E", "100E"),
        ("1e22", "10e21"),
        ("1e100", "10e27"),
        ("-1e100", "-10e27"),
    ];
    for (text, canonical) in cases {
        assert_eq!(q(text).to_string(), canonical, "{text}");
        assert_eq!(q(canonical), q(text), "{text}");
    }
}

#[test]
fn malformed_quantities_are_refused() {
    use ParseQuantityError::{Format, Number, Suffix};
    let cases = [
        ("", Format),
        ("a", Format),
        ("1 ", Format),
        (" 1", Format),
        ("1x", Format),
        ("--1", Suffix),
        ("1.2.3", Format),
        (".", Number),
        ("1K", Suffix),
        ("1kk", Suffix),
        ("1mi", Suffix),
        ("1e", Suffix),
        ("1e3.5", Format),
        ("1Gib", Format),
        ("1i", Suffix),
        ("1e9223372036854", Suffix),
    ];
    for (text, error) in cases {
        assert_eq!(text.parse::<Quantity>().unwrap_err(), error, "{text:?}");
    }
}

#[test]
fn quantities_convert_to_milli_and_bytes() {
    assert_eq!(q("1500m").as_milli(), 1500);
    assert_eq!(q("1500m").value(), 2);
    assert_eq!(q("-1500m").value(), -2);
    assert_eq!(q("1u").as_milli(), 1);
    assert_eq!(q("1Gi").as_bytes(), 1 << 30);
    assert_eq!(q("-1").as_bytes(), 0);
    assert_eq!(q("9E").as_milli(), i64::MAX);
    assert_eq!(Quantity::from_milli(250).to_string(), "250m");
    assert_eq!(Quantity::from_bytes(3 << 20).to_string(), "3Mi");
    assert_eq!(Quantity::from_units(3000).to_string(), "3k");
}

#[test]
fn sums_take_the_suffixes_of_the_first_that_is_something() {
    assert_eq!((q("1Gi") + q("1G")).to_string(), "2073741824");
    assert_eq!((q("0") + q("512Mi") + q("512Mi")).to_string(), "1Gi");
    assert_eq!((q("1") - q("100m")).to_string(), "900m");
    let requests = ["100m", "1", "50m"].map(q);
    assert_eq!(requests.into_iter().sum::<Quantity>().to_string(), "1150m");
    assert_eq!((q("9E") + q("9E")).to_string(), "18E");
    assert_eq!((q("9E") + q("9E")).value(), i64::MAX);
    assert_eq!((q("7Ei") + q("7Ei")).to_string(), "9223372036854775807");
}

#[test]
fn json_takes_numbers_too() {
    let read = |json: &str| serde_json::from_str::<Quantity>(json).map(|q| q.to_string());
    assert_eq!(read("1").unwrap(), "1");
    assert_eq!(read("0.5").unwrap(), "500m");
    assert_eq!(read("\"1Gi\"").unwrap(), "1Gi");
    assert_eq!(read("null").unwrap(), "0");
    assert!(read("true").is_err());
    assert!(read("\"1 Gi\"").is_err());
}

/// A number as decimal text with up to nine fractional digits.
fn decimal() -> impl Strategy<Value = (i64, String)> {
    (-1_000_000_000_000_000i64..1_000_000_000_000_000).prop_map(|nanos| {
        let sign = if nanos < 0 { "-" } else { "" };
        let (whole, fraction) =
            (nanos.unsigned_abs() / 1_000_000_000, nanos.unsigned_abs() % 1_000_000_000);
        (nanos, format!("{sign}{whole}.{fraction:09}"))
    })
}

proptest! {
    #[test]
    fn decimal_texts_are_exact((nanos, text) in decimal()) {
        prop_assert_eq!(q(&text).nanos, i128::from(nanos));
    }

    #[test]
    fn the_canonical_form_is_the_same_amount_and_stays(
        nanos in -MAX_BINARY..MAX_BINARY,
        format in prop_oneof![
            Just(Format::DecimalSi), Just(Format::BinarySi), Just(Format::DecimalExponent)
        ],
    ) {
        let quantity = Quantity { nanos, format };
        let text = quantity.to_string();
        prop_assert_eq!(q(&text), quantity);
        prop_assert_eq!(q(&text).to_string(), text);
    }

    #[test]
    fn sum_and_difference_undo_each_other((a, x) in decimal(), (b, y) in decimal()) {
        prop_assert_eq!((q(&x) + q(&y)).nanos, i128::from(a) + i128::from(b));
        prop_assert_eq!(q(&x) + q(&y) - q(&y), q(&x));
        prop_assert_eq!(q(&x).cmp(&q(&y)), a.cmp(&b));
    }

    #[test]
    fn binary_suffixes_are_powers_of_two(mantissa in 1i64..1000, at in 0usize..6) {
        let suffix = ["", "Ki", "Mi", "Gi", "Ti", "Pi"][at];
        let value = mantissa << (10 * at);
        prop_assert_eq!(q(&format!("{mantissa}{suffix}")).value(), value);
        prop_assert_eq!(Quantity::from_bytes(value), q(&format!("{mantissa}{suffix}")));
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[+-]?[0-9.]{0,24}[eEinumkKMGTP]{0,3}[+-]?[0-9]{0,12}") {
        if let Ok(quantity) = text.parse::<Quantity>() {
            prop_assert_eq!(q(&quantity.to_string()), quantity);
        }
    }
}
