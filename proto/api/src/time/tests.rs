//! Tables and properties of times.

use super::*;
use proptest::prelude::*;
use prost::Message;

#[test]
fn texts_and_seconds() {
    let cases = [
        ("1970-01-01T00:00:00Z", 0),
        ("1969-12-31T23:59:59Z", -1),
        ("2000-02-29T12:00:00Z", 951_825_600),
        ("2026-11-21T02:20:18Z", 1_795_227_618),
        ("0001-01-01T00:00:00Z", -62_135_596_800),
        ("9999-12-31T23:59:59Z", 253_402_300_799),
    ];
    for (text, seconds) in cases {
        assert_eq!(text.parse(), Ok(Time::from_unix(seconds)), "{text}");
        assert_eq!(Time::from_unix(seconds).to_string(), text);
    }
}

#[test]
fn fractions_and_offsets() {
    let unix = |text: &str| text.parse::<MicroTime>().unwrap().unix_micros().unwrap();
    assert_eq!(unix("1970-01-01T00:00:00.5Z"), 500_000);
    assert_eq!(unix("1970-01-01T00:00:00.123456789Z"), 123_456);
    assert_eq!(unix("1970-01-01T00:00:00.1234567891234567890Z"), 123_456);
    assert_eq!(unix("1970-01-01T01:30:00.000001+01:30"), 1);
    assert_eq!(unix("1969-12-31T23:00:00-01:00"), 0);
    assert_eq!("1970-01-01T00:00:01.9Z".parse(), Ok(Time::from_unix(1)));
    assert_eq!(MicroTime::from_unix_micros(-1).to_string(), "1969-12-31T23:59:59.999999Z");
    assert_eq!(MicroTime::from_unix_micros(-1).to_seconds(), Time::from_unix(-1));
}

#[test]
fn times_beyond_the_range_are_shown_as_its_ends() {
    assert_eq!(Time::from_unix(i64::MAX).to_string(), "9999-12-31T23:59:59Z");
    assert_eq!(Time::from_unix(i64::MIN).to_string(), "0000-01-01T00:00:00Z");
}

#[test]
fn malformed_times_are_refused() {
    let texts = [
        "",
        "2026-11-21",
        "2026-11-21T02:20:18",
        "2026-11-21 02:20:18Z",
        "2026-13-01T00:00:00Z",
        "2026-02-30T00:00:00Z",
        "2026-00-01T00:00:00Z",
        "2026-01-01T24:00:00Z",
        "2026-01-01T00:60:00Z",
        "2026-01-01T00:00:00.Z",
        "2026-01-01T00:00:00+1:00",
        "2026-01-01T00:00:00+24:00",
        "+026-01-01T00:00:00Z",
        "2026-01-01T00:00:00ZZ",
        "2016-12-31T23:59:60Z",
        "2026-01-01t00:00:00Z",
        "2026-01-01T00:00:00z",
        "äöüäöüäöüäöü",
        "9999-12-31T23:59:59-00:01",
        "0000-01-01T00:00:00+00:01",
    ];
    for text in texts {
        assert!(text.parse::<Time>().is_err(), "{text:?}");
    }
}

#[test]
fn unset_is_null_and_an_empty_message() {
    assert_eq!(serde_json::to_string(&Time::UNSET).unwrap(), "null");
    assert_eq!(serde_json::from_str::<MicroTime>("null").unwrap(), MicroTime::UNSET);
    let wire = |time: Time| Wire::from(&time).encode_to_vec();
    assert_eq!(wire(Time::UNSET), [0u8; 0]);
    assert_eq!(wire(Time::from_unix(0)), [8, 0, 16, 0]);
    assert_eq!(Time::from(Wire::decode(&[8u8, 0, 16, 0][..]).unwrap()), Time::from_unix(0));
    assert_eq!(Time::from(Wire::default()), Time::UNSET);
}

/// Found by fuzzing: an object was read, and written as JSON that cannot be read again.
#[test]
fn a_message_of_a_year_that_has_no_text_is_refused() {
    let read = |seconds: i64| {
        let wire = Wire { seconds: Some(seconds), nanos: None };
        let mut bytes = Vec::new();
        prost::encoding::message::encode(1, &wire, &mut bytes);
        let (mut time, mut micro) = (Time::UNSET, MicroTime::UNSET);
        // The key of the field is one byte.
        let context = DecodeContext::default;
        let first = time.merge_field(WireType::LengthDelimited, &mut &bytes[1..], context());
        let second = micro.merge_field(WireType::LengthDelimited, &mut &bytes[1..], context());
        assert_eq!(first.is_ok(), second.is_ok());
        first.is_ok().then(|| time.to_string())
    };
    assert_eq!(read(253_402_300_799).as_deref(), Some("9999-12-31T23:59:59Z"));
    assert_eq!(read(-62_167_219_200).as_deref(), Some("0000-01-01T00:00:00Z"));
    for seconds in [253_402_300_800, -62_167_219_201, i64::MAX, i64::MIN, 3_846_251_000_000] {
        assert_eq!(read(seconds), None, "{seconds}");
    }
}

proptest! {
    #[test]
    fn seconds_read_back(seconds in -62_135_596_800i64..253_402_300_800) {
        let time = Time::from_unix(seconds);
        prop_assert_eq!(time.to_string().parse::<Time>(), Ok(time));
    }

    #[test]
    fn micros_read_back(micros in -62_135_596_800_000_000i64..253_402_300_800_000_000) {
        let time = MicroTime::from_unix_micros(micros);
        prop_assert_eq!(time.to_string().parse::<MicroTime>(), Ok(time));
        prop_assert_eq!(MicroTime::from(Wire::from(&time)), time);
    }

    #[test]
    fn any_text_is_read_or_refused(text in ".{0,30}") {
        let _ = text.parse::<Time>();
    }

    #[test]
    fn any_message_is_a_time(seconds: Option<i64>, nanos: Option<i32>) {
        let _ = MicroTime::from(Wire { seconds, nanos }).to_string();
        let _ = Time::from(Wire { seconds, nanos }).to_string();
    }
}
