//! Tests of signing and verification with keys in every supported file format.

use super::*;

fn generated() -> String {
    rcgen::KeyPair::generate().unwrap().serialize_pem()
}

#[test]
fn signs_and_verifies() {
    let key = SigningKey::from_pem(generated().as_bytes()).unwrap();
    let signature = key.sign(b"claims").unwrap();
    let verifies = |message, signature| {
        let accepted = Algorithm::ALL.map(|algorithm| {
            let good = key.public().verifies(algorithm, message, signature);
            good.then(|| algorithm.name())
        });
        accepted.into_iter().flatten().collect::<Vec<_>>()
    };
    assert_eq!(verifies(b"claims", &signature), ["ES256"]);
    assert!(verifies(b"other", &signature).is_empty());
    assert!(verifies(b"claims", &signature[1..]).is_empty());
    assert_eq!(key.public().algorithm(), Algorithm::Es256);
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
    let p521 = "ec4gDjMw9_57_T-FCMjOlk6w1GaHCI1ljcyIoQhQY8k";
    for (pem, id, algorithm) in [
        (include_str!("../../testdata/rsa.key"), rsa, "RS256"),
        (include_str!("../../testdata/rsa.pub"), rsa, "RS256"),
        (include_str!("../../testdata/ec.key"), ec, "ES384"),
        (include_str!("../../testdata/ec.crt"), ec, "ES384"),
        (include_str!("../../testdata/p521.key"), p521, "ES512"),
        (include_str!("../../testdata/p521.sec1.key"), p521, "ES512"),
        (include_str!("../../testdata/p521.pub"), p521, "ES512"),
        (include_str!("../../testdata/p521.crt"), p521, "ES512"),
    ] {
        let keys = PublicKey::all_from_pem(pem.as_bytes()).unwrap();
        assert_eq!(keys.len(), 1, "{pem}");
        assert_eq!((keys[0].id(), keys[0].algorithm().name()), (id, algorithm), "{pem}");
        let (mut published, only) = (keys[0].jwk(), Algorithm::from_name(algorithm));
        let key = PublicKey::from_jwk(&published);
        assert_eq!(key, Some(PublicKey { only, ..keys[0].clone() }), "{pem}");
        published["alg"].take();
        assert_eq!(PublicKey::from_jwk(&published).as_ref(), Some(&keys[0]), "{pem}");
    }
    for pem in [
        include_str!("../../testdata/rsa.key"),
        include_str!("../../testdata/ec.key"),
        include_str!("../../testdata/p521.key"),
        include_str!("../../testdata/p521.sec1.key"),
    ] {
        let key = SigningKey::from_pem(pem.as_bytes()).unwrap();
        let signature = key.sign(b"claims").unwrap();
        assert!(key.public().verifies(key.public().algorithm(), b"claims", &signature));
        assert_eq!(
            PublicKey::all_from_pem(pem.as_bytes()).unwrap(),
            std::slice::from_ref(key.public())
        );
    }
}

/// The files of public keys are those that openssl has written of the private ones: `openssl pkey -in FILE -pubout`.
#[test]
fn a_public_key_is_written_as_by_openssl() {
    for (private, public) in [
        (include_str!("../../testdata/rsa.key"), include_str!("../../testdata/rsa.pub")),
        (include_str!("../../testdata/p521.key"), include_str!("../../testdata/p521.pub")),
        (include_str!("../../testdata/p521.sec1.key"), include_str!("../../testdata/p521.pub")),
    ] {
        assert_eq!(SigningKey::from_pem(private.as_bytes()).unwrap().public().pem(), public);
    }
    let p256 = include_str!("../../testdata/p256.pub");
    assert_eq!(PublicKey::all_from_pem(p256.as_bytes()).unwrap()[0].pem(), p256);
    for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384] {
        let pair = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let key = SigningKey::from_pem(pair.serialize_pem().as_bytes()).unwrap();
        assert_eq!(key.public().pem(), pair.public_key_pem());
    }
}

/// A JSON Web Key of RSA is for the algorithm that it names, or for all of RSA.
#[test]
fn an_rsa_key_has_the_algorithms_that_it_says() {
    let key = &PublicKey::all_from_pem(include_bytes!("../../testdata/rsa.pub")).unwrap()[0];
    let names = |key: &PublicKey| {
        let all = Algorithm::ALL.into_iter().filter(|&algorithm| key.has(algorithm));
        all.map(Algorithm::name).collect::<Vec<_>>()
    };
    let of_rsa = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"];
    assert_eq!(names(key), of_rsa);
    let mut published = key.jwk();
    for name in of_rsa {
        published["alg"] = name.into();
        assert_eq!(names(&PublicKey::from_jwk(&published).unwrap()), [name]);
    }
    for name in ["ES256", "RSA-OAEP", "HS256", "none", "rs256", ""] {
        published["alg"] = name.into();
        assert_eq!(PublicKey::from_jwk(&published), None, "{name:?}");
    }
}

/// A curve whose points have the length of P-256's.
#[test]
fn keys_of_other_curves_are_refused_in_every_form() {
    for pem in [
        include_str!("../../testdata/k256.pub"),
        include_str!("../../testdata/k256.key"),
        include_str!("../../testdata/k256.sec1.key"),
    ] {
        let refused = PublicKey::all_from_pem(pem.as_bytes()).unwrap_err().to_string();
        let expected =
            "unsupported or invalid key: an ECDSA key that is none of P-256, P-384 and P-521";
        assert_eq!(refused, expected, "{pem}");
    }
}

/// Coordinates of one curve are no key of another that is named.
#[test]
fn a_json_web_key_is_of_the_curve_that_it_names() {
    let files = [
        include_str!("../../testdata/p256.pub"),
        include_str!("../../testdata/ec.crt"),
        include_str!("../../testdata/p521.pub"),
    ];
    let curves = ["P-256", "P-384", "P-521"];
    for (pem, curve) in files.into_iter().zip(curves) {
        let jwk = PublicKey::all_from_pem(pem.as_bytes()).unwrap()[0].jwk();
        assert_eq!(jwk["crv"], curve);
        for named in curves.into_iter().chain(["secp256k1", "p-521", ""]) {
            let (mut with, mut of_any) = (jwk.clone(), jwk.clone());
            with["crv"] = named.into();
            assert_eq!(PublicKey::from_jwk(&with).is_some(), named == curve, "{curve}, {named}");
            of_any["crv"] = named.into();
            of_any["alg"].take();
            assert_eq!(PublicKey::from_jwk(&of_any).is_some(), named == curve, "{curve}, {named}");
        }
        // The two coordinates are of equal length: what one lacks, the other may not have too much.
        let (x, y) = (jwk["x"].as_str().unwrap(), jwk["y"].as_str().unwrap());
        let (x, y) = (URL_SAFE_NO_PAD.decode(x).unwrap(), URL_SAFE_NO_PAD.decode(y).unwrap());
        let (longer, shorter) = ([&x[..], &y[..1]].concat(), &y[1..]);
        let mut shifted = jwk.clone();
        shifted["x"] = URL_SAFE_NO_PAD.encode(longer).into();
        shifted["y"] = URL_SAFE_NO_PAD.encode(shorter).into();
        assert_eq!(PublicKey::from_jwk(&shifted), None, "{curve}");
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
    let only = Some(Algorithm::Es256);
    assert_eq!(PublicKey::from_jwk(&jwk), Some(PublicKey { only, ..key.public().clone() }));
    for (field, value) in
        [("use", "enc"), ("alg", "ES384"), ("kty", "oct"), ("crv", "P-521"), ("x", "!")]
    {
        let mut other = jwk.clone();
        other[field] = value.into();
        assert_eq!(PublicKey::from_jwk(&other), None, "{field}");
    }
}

/// kubeadm's and openssl's keys: the library that issues certificates takes PKCS#8 only.
#[test]
fn private_keys_of_older_formats_are_wrapped() {
    for pem in
        [&include_bytes!("../../testdata/rsa.key")[..], include_bytes!("../../testdata/ec.key")]
    {
        let pkcs8 = pkcs8_from_pem(pem).expect("wrapped");
        let key = rcgen::KeyPair::try_from(&pkcs8[..]).expect("a key");
        let text = key.serialize_pem();
        assert_eq!(pkcs8_from_pem(text.as_bytes()).expect("as it is"), pkcs8);
        let same = SigningKey::from_pem(pem).expect("a key");
        assert_eq!(SigningKey::from_pem(text.as_bytes()).expect("a key").public(), same.public());
    }
    assert!(matches!(
        pkcs8_from_pem(b"-----BEGIN X-----\nAAAA\n-----END X-----\n"),
        Err(KeyError::Missing)
    ));
    // Certificates have no P-521: neither form of a key gives a pair that signs them.
    let other = pkcs8_from_pem(include_bytes!("../../testdata/p521.sec1.key")).unwrap_err();
    let expected = "unsupported or invalid key: an ECDSA key that is neither P-256 nor P-384";
    assert_eq!(other.to_string(), expected);
    let other = pkcs8_from_pem(include_bytes!("../../testdata/p521.key")).expect("as it is");
    assert!(rcgen::KeyPair::try_from(&other[..]).is_err());
}
