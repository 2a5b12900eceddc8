//! Vectors of RFC 6979 (A.2.7) and RFC 7515 (A.4); signatures and keys that are damaged.

use super::*;
use crate::der::element;
use crate::{Algorithm, PublicKey};

const OID_P521: &[u8] = &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x23];

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.bytes().map(|byte| (byte as char).to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// The private key of RFC 6979 as SEC1, `scalar` being its number and `more` what follows it.
fn sec1(scalar: &[u8], more: &[&[u8]]) -> Vec<u8> {
    let number = element(0x04, &[scalar]);
    let parts = [&[&[0x02, 0x01, 0x01], &*number][..], more].concat();
    element(0x30, &parts)
}

fn scalar() -> Vec<u8> {
    hex(
        "00FAD06DAA62BA3B25D2FB40133DA757205DE67F5BB0018FEE8C86E1B68C7E75CAA896EB32F1F47C70855836A6D16FCC1466F6D8FBEC67DB89EC0C08B0E996B83538",
    )
}

fn point() -> Vec<u8> {
    hex(concat!(
        "04",
        "01894550D0785932E00EAA23B694F213F8C3121F86DC97A04E5A7167DB4E5BCD371123D46E45DB6B5D5370A7F20FB633155D38FFA16D2BD761DCAC474B9A2F5023A4",
        "00493101C962CD4D2FDDF782285E64584139C2F91B47F87FF82354D6630F746A28A0DB25741B5B34A828008B22ACC23F924FAAFBD4D33F81EA66956DFEAA2BFDFCF5",
    ))
}

fn key() -> P521SigningKey {
    P521SigningKey::from_sec1(&sec1(&scalar(), &[])).unwrap()
}

#[test]
fn signatures_are_those_of_rfc_6979() {
    let key = key();
    assert_eq!(key.public().point(), point());
    for (message, r, s) in [
        (
            "sample",
            "00C328FAFCBD79DD77850370C46325D987CB525569FB63C5D3BC53950E6D4C5F174E25A1EE9017B5D450606ADD152B534931D7D4E8455CC91F9B15BF05EC36E377FA",
            "00617CCE7CF5064806C467F678D3B4080D6F1CC50AF26CA209417308281B68AF282623EAA63E5B5C0723D8B8C37FF0777B1A20F8CCB1DCCC43997F1EE0E44DA4A67A",
        ),
        (
            "test",
            "013E99020ABF5CEE7525D16B69B229652AB6BDF2AFFCAEF38773B4B7D08725F10CDB93482FDCC54EDCEE91ECA4166B2A7C6265EF0CE2BD7051B7CEF945BABD47EE6D",
            "01FBD0013C674AA79CB39849527916CE301C66EA7CE8B80682786AD60F98F7E78A19CA69EFF5C57400E3B3A0AD66CE0978214D13BAF4E9AC60752F7B155E2DE4DCE3",
        ),
    ] {
        let expected = [hex(r), hex(s)].concat();
        assert_eq!(key.sign(message.as_bytes()).unwrap(), expected, "{message}");
        assert!(key.public().verifies(message.as_bytes(), &expected), "{message}");
    }
}

/// The example of an ES512 signature in RFC 7515.
#[test]
fn the_example_of_rfc_7515_is_verified() {
    let jwk = serde_json::json!({
        "kty": "EC",
        "crv": "P-521",
        "x": "AekpBQ8ST8a8VcfVOTNl353vSrDCLLJXmPk06wTjxrrjcBpXp5EOnYG_NjFZ6OvLFV1jSfS9tsz4qUxcWceqwQGk",
        "y": "ADSmRA43Z1DSNx_RvcLI87cdL07l6jQyyBXMoxVg_l2Th-x3S1WDhjDly79ajL4Kkd0AZMaZmh9ubmf63e3kyMj2",
    });
    let key = PublicKey::from_jwk(&jwk).unwrap();
    use base64::Engine as _;
    let signature = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(
        "AdwMgeerwtHoh-l192l60hp9wAHZFVJbLfD_UxMi70cwnZOYaRI1bKPWROc-mZZqwqT2SI-KGDKB34XO0aw_7XdtAG8GaSwFKdCAPZgoXD2YBJZCPEX3xKpRwcdOO8KpEHwJjyqOgzDO7iKvU8vcnwNrmxYbSW9ERBXukOXolLzeO_Jn",
    );
    let (message, signature) = (b"eyJhbGciOiJFUzUxMiJ9.UGF5bG9hZA", signature.unwrap());
    for algorithm in Algorithm::ALL {
        let verified = key.verifies(algorithm, message, &signature);
        assert_eq!(verified, algorithm == Algorithm::Es512, "{}", algorithm.name());
    }
    assert!(!key.verifies(Algorithm::Es512, b"eyJhbGciOiJFUzUxMiJ9.UGF5bG9hZB", &signature));
}

#[test]
fn damaged_signatures_verify_nothing() {
    let key = key();
    let good = key.sign(b"claims").unwrap();
    assert_eq!(good.len(), 132);
    let verifies = |signature: &[u8]| key.public().verifies(b"claims", signature);
    assert!(verifies(&good));
    assert!(!key.public().verifies(b"claim", &good));
    for at in 0..good.len() {
        let mut flipped = good.clone();
        flipped[at] ^= 1;
        assert!(!verifies(&flipped), "byte {at}");
    }
    let (r, s) = good.split_at(66);
    let order = hex(
        "01FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFA51868783BF2F966B7FCC0148F709A5D03BB5C9B8899C47AEBB6FB71E91386409",
    );
    for (what, signature) in [
        ("nothing", vec![]),
        ("one byte less", good[1..].to_vec()),
        ("cut", good[..131].to_vec()),
        ("one byte more", [&good[..], &[0]].concat()),
        ("a zero in front", [&[0], &good[..]].concat()),
        ("twice", [&good[..], &good].concat()),
        ("the length of ES384", good[..96].to_vec()),
        ("halves changed", [s, r].concat()),
        ("zeros", vec![0; 132]),
        ("r is zero", [&[0; 66], s].concat()),
        ("s is zero", [r, &[0; 66]].concat()),
        ("r is the order", [&order, s].concat()),
        ("s is the order", [r, &order].concat()),
        ("all bits", vec![0xff; 132]),
        ("ASN.1", element(0x30, &[&element(0x02, &[r]), &element(0x02, &[s])])),
    ] {
        assert!(!verifies(&signature), "{what}");
    }
}

#[test]
fn points_that_are_not_on_the_curve_are_no_keys() {
    let good = point();
    assert!(P521VerifyingKey::from_point(&good).is_some());
    let (mut last, mut first) = (good.clone(), good.clone());
    last[132] ^= 1;
    first[0] = 6;
    let compressed = [&[3], &good[1..67]].concat();
    let of_zeros = [&[4][..], &[0; 132]].concat();
    let infinity = vec![0];
    let long = [&good[..], &[0]].concat();
    for wrong in [last, first, compressed, of_zeros, infinity, long, good[..132].to_vec(), vec![]] {
        assert_eq!(P521VerifyingKey::from_point(&wrong), None, "{wrong:02x?}");
    }
}

#[test]
fn private_keys_are_of_the_curve_and_of_full_width() {
    let curve = element(0xa0, &[OID_P521]);
    let public = |point: &[u8]| element(0xa1, &[&element(0x03, &[&[0], point])]);
    let own = public(&point());
    for more in [&[][..], &[&*curve], &[&*own], &[&*curve, &*own]] {
        let key = P521SigningKey::from_sec1(&sec1(&scalar(), more));
        assert_eq!(key.map(|key| key.public().point()), Some(point()));
    }
    let other = element(0xa0, &[&[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22]]);
    let mut of_another = point();
    of_another[132] ^= 1;
    let refused = |what: &str, der: &[u8]| {
        assert!(P521SigningKey::from_sec1(der).is_none(), "{what}");
    };
    refused("another curve", &sec1(&scalar(), &[&other]));
    refused("another public half", &sec1(&scalar(), &[&public(&of_another)]));
    refused("the number of P-256", &sec1(&[7; 32], &[]));
    refused("a shorter number", &sec1(&scalar()[1..], &[&curve]));
    refused("a longer number", &sec1(&[&[0][..], &scalar()].concat(), &[&curve]));
    refused("zero", &sec1(&[0; 66], &[]));
    refused("a number beyond the order", &sec1(&[0xff; 66], &[]));
    refused("something behind it", &[&sec1(&scalar(), &[])[..], &[0]].concat());
    let whole = sec1(&scalar(), &[&curve, &own]);
    for length in 0..whole.len() {
        refused("cut", &whole[..length]);
    }
}
