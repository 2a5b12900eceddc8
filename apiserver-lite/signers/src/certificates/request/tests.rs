//! Decoding of valid requests, and rejection of invalid ones.

use rcgen::{
    CertificateParams, DnType, KeyPair, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PublicKeyData,
    SignatureAlgorithm,
};

use super::*;
use crate::certificates::signer_policy::tests::pem;

fn node(name: &str) -> String {
    pem("system:nodes", name, |_| {})
}

#[test]
fn a_request_is_read_once_and_alone() {
    let good = node("system:node:me");
    let read_name =
        |text: &str| read(text.as_bytes()).map(|r| r.asked.subject.common_name().to_owned());
    assert_eq!(read_name(&good).as_deref(), Ok("system:node:me"));
    assert_eq!(read_name(&format!("\n  {good}\r\n")).as_deref(), Ok("system:node:me"));
    let evil = pem("system:masters", "root", |_| {});
    let unmarked = good.replace("-----BEGIN CERTIFICATE REQUEST-----", "");
    for (text, why) in [
        (format!("x{evil}\n{good}"), "one parser sees the first block, another the second"),
        (format!("x{good}"), "text before the block"),
        (format!("{good}x"), "text after the block"),
        (format!("{good}{evil}"), "two blocks"),
        (format!("{good}{good}"), "the same block twice"),
        (good.replace("CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST"), "another label"),
        (good.replacen("\n", "\nProc-Type: 4,ENCRYPTED\n\n", 1), "headers"),
        (unmarked, "no begin"),
        (good[..good.len() / 2].to_owned(), "cut"),
        ("nonsense".to_owned(), "no PEM"),
        (String::new(), "nothing"),
        (format!("{good}{}", " ".repeat(REQUEST_MAX)), "too long"),
    ] {
        assert!(read(text.as_bytes()).is_err(), "{why}");
    }
}

#[test]
fn the_request_is_signed_by_its_own_key() {
    let der = decode(node("system:node:me").as_bytes()).expect("DER");
    assert!(read(wrap(&der).as_bytes()).is_ok());
    let (mut forged, mut longer) = (der.clone(), der.clone());
    *forged.last_mut().expect("a byte") ^= 1;
    longer.push(0);
    // A changed name with the old signature.
    let renamed: Vec<u8> = {
        let at = der.windows(2).position(|pair| pair == b"me").expect("the name");
        let mut renamed = der;
        renamed[at..at + 2].copy_from_slice(b"it");
        renamed
    };
    for der in [forged, longer, renamed] {
        assert!(read(wrap(&der).as_bytes()).is_err());
    }
}

fn wrap(der: &[u8]) -> String {
    format!("{BEGIN}\n{}\n{END}\n", STANDARD.encode(der))
}

#[test]
fn keys_of_supported_kinds_are_passed_on_as_they_are() {
    let of = |kind: &'static SignatureAlgorithm| {
        let key = KeyPair::generate_for(kind).expect("key");
        let request = CertificateParams::default().serialize_request(&key).expect("request");
        let read = read(request.pem().expect("PEM").as_bytes()).expect("read");
        assert_eq!(read.key.subject_public_key_info(), key.subject_public_key_info());
    };
    of(&rcgen::PKCS_ECDSA_P256_SHA256);
    of(&PKCS_ECDSA_P384_SHA384);
    of(&PKCS_ED25519);
}

#[test]
fn a_short_rsa_key_is_refused() {
    // Made with `openssl req -new -newkey rsa:1024 -sha256 -subj /CN=short`, and with rsa:2048.
    let (short, long) = (include_str!("rsa-1024.pem"), include_str!("rsa-2048.pem"));
    let error = read(short.as_bytes()).expect_err("short");
    assert!(
        error.to_string().contains("an RSA key of 1024 bits, expected 2048 to 8192"),
        "{error}"
    );
    assert_eq!(read(long.as_bytes()).expect("long").asked.subject.common_name(), "long");
}

#[test]
fn subjects_and_names_are_bounded() {
    let many: Vec<String> = (0..=NAMES_MAX).map(|nth| format!("n{nth}")).collect();
    let names = CertificateParams::new(many).expect("names").subject_alt_names;
    let text = pem("o", "n", |params| params.subject_alt_names = names);
    assert!(read(text.as_bytes()).expect_err("many").to_string().contains("subjectAltNames"));
    let text = pem("devs", "n", |params| {
        params.distinguished_name.push(DnType::CustomDnType(vec![2, 5, 4, 3]), "other");
    });
    assert_eq!(read(text.as_bytes()), Err(RequestError::TwoCommonNames));
    let text = pem("devs", "a\u{0}b", |_| {});
    assert!(read(text.as_bytes()).is_err(), "a control character");
}

/// It would be approved, and its signing retried for ever. Made with `openssl req -new -newkey ed25519 -utf8 -subj /CN=n`.
#[test]
fn a_name_that_no_certificate_can_hold_is_refused() {
    let refused = |request: &str| read(request.as_bytes()).expect_err("not ASCII");
    assert_eq!(refused(include_str!("not-ascii.pem")), RequestError::NotAscii("n\u{e9}".into()));
}
