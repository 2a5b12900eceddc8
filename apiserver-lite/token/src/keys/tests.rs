//! Tests of signing and verification with keys in every supported file format.

use super::*;

fn generated() -> String {
    rcgen::KeyPair::generate().unwrap().serialize_pem()
}

#[test]
fn signs_and_verifies() {
    let key = SigningKey::from_pem(generated().as_bytes()).unwrap();
    let signature = key.sign(b"claims").unwrap();
    assert!(key.public().verifies(b"claims", &signature));
    assert!(!key.public().verifies(b"other", &signature));
    assert!(!key.public().verifies(b"claims", &signature[1..]));
    assert_eq!(key.public().algorithm(), "ES256");
}

#[test]
fn public_file_is_the_same_key() {
    let pair = rcgen::KeyPair::generate().unwrap();
    let private = SigningKey::from_pem(pair.serialize_pem().as_bytes()).unwrap();
    let public = PublicKey::all_from_pem(pair.public_key_pem().as_bytes()).unwrap();
    assert_eq!(public.as_slice(), std::slice::from_ref(private.public()));
    let both = format!("{}{}", pair.serialize_pem(), generated());
    assert_eq!(PublicKey::all_from_pem(both.as_bytes()).unwrap().len(), 2);
}

/// What Kubernetes takes for key files: private keys as openssl writes them, a public key, a certificate. The ids are those that openssl computes:
/// `openssl pkey -in FILE -pubout -outform DER | openssl dgst -sha256 -binary | basenc --base64url`.
#[test]
fn ids_are_those_of_kubernetes_in_every_form_of_a_key() {
    let rsa = "onxEb40ntZ4MJ9klzZaxDv1bYIn_myv0AyNjcWsM2UA";
    let ec = "_jUiL2vnX8Nl-aICeA9WJf_91jJMYwkJ16fc8buOl6g";
    for (pem, id, algorithm) in [
        (include_str!("../../testdata/rsa.key"), rsa, "RS256"),
        (include_str!("../../testdata/rsa.pub"), rsa, "RS256"),
        (include_str!("../../testdata/ec.key"), ec, "ES384"),
        (include_str!("../../testdata/ec.crt"), ec, "ES384"),
    ] {
        let keys = PublicKey::all_from_pem(pem.as_bytes()).unwrap();
        assert_eq!(keys.len(), 1, "{pem}");
        assert_eq!((keys[0].id(), keys[0].algorithm()), (id, algorithm), "{pem}");
        assert_eq!(PublicKey::from_jwk(&keys[0].jwk()).as_ref(), Some(&keys[0]));
    }
    for pem in [include_str!("../../testdata/rsa.key"), include_str!("../../testdata/ec.key")] {
        let key = SigningKey::from_pem(pem.as_bytes()).unwrap();
        let signature = key.sign(b"claims").unwrap();
        assert!(key.public().verifies(b"claims", &signature));
        assert_eq!(
            PublicKey::all_from_pem(pem.as_bytes()).unwrap(),
            std::slice::from_ref(key.public())
        );
    }
}

#[test]
fn a_short_rsa_key_is_refused() {
    let short = PublicKey::all_from_pem(include_bytes!("../../testdata/short.pub"));
    let told = short.unwrap_err().to_string();
    assert!(told.ends_with("an RSA key of 1024 bits, expected 2048 or more"), "{told}");
}

#[test]
fn garbage_is_refused() {
    assert!(matches!(SigningKey::from_pem(b""), Err(KeyError::Missing)));
    let damaged = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    assert!(matches!(SigningKey::from_pem(damaged.as_bytes()), Err(KeyError::Rejected(_))));
}

#[test]
fn jwk_shows_both_coordinates() {
    let key = SigningKey::from_pem(generated().as_bytes()).unwrap();
    let jwk = key.public().jwk();
    assert_eq!(jwk["crv"], "P-256");
    assert_eq!(jwk["x"].as_str().unwrap().len(), 43);
    assert_eq!(jwk["y"].as_str().unwrap().len(), 43);
    assert_eq!(PublicKey::from_jwk(&jwk).as_ref(), Some(key.public()));
    for (field, value) in
        [("use", "enc"), ("alg", "ES384"), ("kty", "oct"), ("crv", "P-521"), ("x", "!")]
    {
        let mut other = jwk.clone();
        other[field] = value.into();
        assert_eq!(PublicKey::from_jwk(&other), None, "{field}");
    }
}
