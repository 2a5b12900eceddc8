//! What a machine shows that joins a cluster, and what it is shown: requests of certificates, and `cluster-info`.

/// Requests of certificates, from their reading to what is signed.
pub mod certificate_request {
    use std::sync::OnceLock;
    use std::time::Duration;

    use apiserver_signers::certificates::authority::{CertificateAuthority, usage};
    use apiserver_signers::certificates::{
        ApprovedRequest, RequestedNames, SignerKind, check_request,
    };
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use proto_api::Time;
    use proto_api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, PKCS_ED25519, SanType};
    use ring::signature::{Ed25519KeyPair, KeyPair as _};
    use x509_parser::certificate::X509Certificate;
    use x509_parser::certification_request::X509CertificationRequest;
    use x509_parser::extensions::{GeneralName, ParsedExtension};
    use x509_parser::prelude::FromDer as _;
    use x509_parser::x509::{AttributeTypeAndValue, X509Name};

    use crate::api;

    /// An authority of tests, which nothing trusts.
    fn authority() -> &'static CertificateAuthority {
        static AUTHORITY: OnceLock<CertificateAuthority> = OnceLock::new();
        AUTHORITY.get_or_init(|| {
            let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let certificate = params.self_signed(&key).expect("a certificate").pem();
            let life_max = Duration::from_secs(86_400);
            CertificateAuthority::new(&certificate, &key.serialize_pem(), life_max)
                .expect("an authority")
        })
    }

    /// The key of every requester.
    fn key() -> &'static Ed25519KeyPair {
        static KEY: OnceLock<Ed25519KeyPair> = OnceLock::new();
        KEY.get_or_init(|| Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("a key"))
    }

    /// A value in DER.
    fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let content = parts.concat();
        let len = content.len();
        let mut out = vec![tag];
        match (u8::try_from(len), u16::try_from(len)) {
            (Ok(len), _) if len < 128 => out.push(len),
            (Ok(len), _) => out.extend([0x81, len]),
            (_, len) => {
                out.push(0x82);
                out.extend(len.unwrap_or(u16::MAX).to_be_bytes());
            }
        }
        out.extend(content);
        out
    }

    /// A request with this subject and these attributes, each in DER, signed with the key that is in it.
    fn signed(subject: &[u8], attributes: &[u8]) -> Vec<u8> {
        const ALGORITHM: &[u8] = &[0x30, 5, 6, 3, 0x2b, 0x65, 0x70];
        let public = der(3, &[&[0], key().public_key().as_ref()]);
        let public = der(0x30, &[ALGORITHM, &public]);
        let info = der(0x30, &[&[2, 1, 0], subject, &public, attributes]);
        let signature = der(3, &[&[0], key().sign(&info).as_ref()]);
        der(0x30, &[&info, ALGORITHM, &signature])
    }

    fn pem(der: &[u8]) -> Vec<u8> {
        let body = STANDARD.encode(der);
        format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n")
            .into()
    }

    /// The subject of a request, which is as long as the byte before it says.
    fn split(bytes: &[u8]) -> (&[u8], &[u8]) {
        let (len, rest) = bytes.split_first().unwrap_or((&0, &[]));
        rest.split_at(usize::from(*len).min(rest.len()))
    }

    fn spec(first: u8, request: Vec<u8>) -> CertificateSigningRequestSpec {
        let names = api::names();
        let (signer, auth) = match first & 3 {
            0 => (names.node_client_signer(), "client auth"),
            1 => (names.node_serving_signer(), "server auth"),
            2 => (names.client_signer(), "client auth"),
            _ => (names.legacy_signer(), "any"),
        };
        CertificateSigningRequestSpec {
            request,
            signer_name: signer,
            usages: ["digital signature", "key encipherment", auth].map(str::to_owned).into(),
            username: "system:node:n1".to_owned(),
            expiration_seconds: (first & 4 != 0).then_some(i32::from(first) << 20),
            ..CertificateSigningRequestSpec::default()
        }
    }

    /// The alternative names of a certificate, as texts.
    fn names_of(certificate: &X509Certificate<'_>) -> Vec<String> {
        let names = certificate.subject_alternative_name().expect("read").map(|found| found.value);
        let text = |name: &GeneralName<'_>| match name {
            GeneralName::DNSName(name) => format!("dns {name}"),
            GeneralName::RFC822Name(name) => format!("mail {name}"),
            GeneralName::URI(name) => format!("uri {name}"),
            GeneralName::IPAddress(bytes) => format!("ip {bytes:?}"),
            other => panic!("{other:?}"),
        };
        names.into_iter().flat_map(|names| names.general_names.iter().map(text)).collect()
    }

    /// The alternative names that were checked, in the same form.
    fn names_asked(asked: &RequestedNames) -> Vec<String> {
        let text = |name: SanType| match name {
            SanType::DnsName(name) => format!("dns {}", name.as_str()),
            SanType::Rfc822Name(name) => format!("mail {}", name.as_str()),
            SanType::URI(name) => format!("uri {}", name.as_str()),
            SanType::IpAddress(std::net::IpAddr::V4(address)) => {
                format!("ip {:?}", address.octets())
            }
            SanType::IpAddress(std::net::IpAddr::V6(address)) => {
                format!("ip {:?}", address.octets())
            }
            other => panic!("{other:?}"),
        };
        asked.alternative_names().expect("checked").into_iter().map(text).collect()
    }

    /// Names that a signer may certify.
    fn check_policy(checked: &ApprovedRequest, user: &str) {
        let asked = &checked.request.asked;
        let groups = asked.subject.organizations();
        assert!(!groups.contains(&"system:masters"));
        match checked.signer {
            SignerKind::NodeClient(_) | SignerKind::NodeServing => {
                assert_eq!(groups, ["system:nodes"]);
                assert!(asked.subject.common_name().len() > "system:node:".len());
                assert!(asked.subject.common_name().starts_with("system:node:"));
            }
            SignerKind::Client => assert!(!asked.subject.common_name().is_empty()),
            SignerKind::Legacy => {}
        }
        match checked.signer {
            SignerKind::NodeClient(_) => assert!(names_asked(asked).is_empty()),
            SignerKind::NodeServing => assert_eq!(asked.subject.common_name(), user),
            _ => {}
        }
    }

    /// Types and texts of a subject's attributes, in order.
    fn attributes(subject: &X509Name<'_>) -> Vec<(String, String)> {
        let pair = |found: &AttributeTypeAndValue<'_>| {
            (found.attr_type().to_id_string(), found.as_str().expect("a text").to_owned())
        };
        subject.iter_attributes().map(pair).collect()
    }

    /// What is signed is what was checked, and nothing else.
    fn check_certificate(spec: &CertificateSigningRequestSpec, checked: &ApprovedRequest) {
        let now = 1_800_000_000;
        let signed = authority().sign(spec, checked, Time::from_unix(now));
        let signed = signed.unwrap_or_else(|error| panic!("checked, and not signed: {error:?}"));
        let (_, block) = x509_parser::pem::parse_x509_pem(&signed).expect("PEM");
        let certificate = block.parse_x509().expect("a certificate");
        let asked = &checked.request.asked;
        let (_, block) = x509_parser::pem::parse_x509_pem(&spec.request).expect("checked");
        let (_, request) = X509CertificationRequest::from_der(&block.contents).expect("checked");
        let requested = attributes(&request.certification_request_info.subject);
        assert_eq!(attributes(certificate.subject()), requested);
        assert_eq!(names_of(&certificate), names_asked(asked));
        assert!(!certificate.is_ca());
        assert_eq!(
            certificate.public_key().subject_public_key.data.as_ref(),
            key().public_key().as_ref()
        );
        assert!(certificate.validity().not_after.timestamp() <= now + 86_400);
        assert!(spec.usages.iter().all(|name| usage(name).is_some()));
        if let Some(usages) = certificate.extended_key_usage().expect("read") {
            let has = |name: &str| spec.usages.iter().any(|usage| usage == name);
            assert_eq!(usages.value.client_auth, has("client auth"));
            assert_eq!(usages.value.server_auth, has("server auth"));
            assert!(!usages.value.code_signing && usages.value.other.is_empty());
        }
        for extension in certificate.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::AuthorityKeyIdentifier(_)
                | ParsedExtension::SubjectKeyIdentifier(_)
                | ParsedExtension::SubjectAlternativeName(_)
                | ParsedExtension::BasicConstraints(_)
                | ParsedExtension::KeyUsage(_)
                | ParsedExtension::ExtendedKeyUsage(_) => {}
                other => panic!("nothing asked for it: {other:?}"),
            }
        }
    }

    /// Reads the bytes as a request, and makes one of them: a byte that says the signer, the length of the subject, the subject, the attributes.
    pub fn check(bytes: &[u8]) {
        let (first, rest) = bytes.split_first().unwrap_or((&0, &[]));
        let (subject, attributes) = split(rest);
        for request in [bytes.to_vec(), pem(bytes), pem(&signed(subject, attributes))] {
            let spec = spec(*first, request);
            let request =
                CertificateSigningRequest { spec, ..CertificateSigningRequest::default() };
            let Ok(Some(checked)) = check_request(api::names(), &request) else { continue };
            check_policy(&checked, &request.spec.username);
            check_certificate(&request.spec, &checked);
        }
    }

    /// A request for each signer.
    pub fn seeds() -> Vec<Vec<u8>> {
        let attribute = |kind: u8, tag: u8, text: &str| {
            let value = der(0x30, &[&[6, 3, 0x55, 4, kind], &der(tag, &[text.as_bytes()])]);
            der(0x31, &[&value])
        };
        let subject = |organization: &str, name: &str| {
            der(0x30, &[&attribute(10, 0x0c, organization), &attribute(3, 0x13, name)])
        };
        let with_names = |names: &[&[u8]]| {
            let names = der(4, &[&der(0x30, names)]);
            let extension = der(0x30, &[&[6, 3, 0x55, 0x1d, 0x11], &names]);
            let constraints =
                der(0x30, &[&[6, 3, 0x55, 0x1d, 0x13, 1, 1, 0xff, 4, 5, 0x30, 3, 1, 1, 0xff]]);
            let extensions = der(0x31, &[&der(0x30, &[&extension, &constraints])]);
            let kind = [6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 0x0e];
            der(0xa0, &[&der(0x30, &[&kind, &extensions])])
        };
        let none = der(0xa0, &[]);
        let hosts = with_names(&[&der(0x82, &[b"n1"]), &der(0x87, &[&[10, 0, 0, 1]])]);
        let all = with_names(&[
            &der(0x82, &[b"jane.example.org"]),
            &der(0x81, &[b"jane@example.org"]),
            &der(0x86, &[b"https://example.org/jane"]),
            &der(0x87, &[&[0xfd; 16]]),
        ]);
        let node = subject("system:nodes", "system:node:n1");
        let cases: [(u8, &[u8], &[u8]); 6] = [
            (0, &node, &none),
            (1, &node, &hosts),
            (2, &subject("devs", "jane"), &all),
            (3, &subject("devs", ""), &hosts),
            (6, &subject("system:masters", "root"), &none),
            (7, &node, &all),
        ];
        let seed = |(first, subject, attributes): &(u8, &[u8], &[u8])| {
            let len = u8::try_from(subject.len()).unwrap_or(u8::MAX);
            [&[*first, len], *subject, attributes].concat()
        };
        for (first, subject, attributes) in &cases[..4] {
            let spec = spec(*first, pem(&signed(subject, attributes)));
            let request =
                CertificateSigningRequest { spec, ..CertificateSigningRequest::default() };
            let checked = check_request(api::names(), &request);
            assert!(matches!(checked, Ok(Some(_))), "{first}: {checked:?}");
        }
        cases.iter().map(seed).collect()
    }
}

/// `cluster-info`, with the signatures of tokens.
pub mod cluster_info {
    use std::path::Path;

    use apiserver_bootstrap::bootstrap_token::{BootstrapToken, ListedToken};
    use apiserver_bootstrap::cluster_info::{check_pins, cluster_of, parse_pin, pins, verified};
    use apiserver_signers::bootstrap::tokens::{
        KUBECONFIG, Token, signature, signature_key, signatures,
    };
    use proto_api::Time;
    use proto_api::core::v1::{ConfigMap, Secret};

    /// The Secret of a token, with a text as its end and its groups.
    fn secret(token: &BootstrapToken, text: &str) -> Secret {
        let mut secret = Secret::default();
        secret.metadata.name = format!("bootstrap-token-{}", token.id);
        for (key, value) in [
            ("token-id", token.id.as_str()),
            ("token-secret", &token.secret),
            ("usage-bootstrap-signing", "true"),
            ("expiration", text),
            ("auth-extra-groups", text),
        ] {
            secret.data.insert(key.to_owned(), value.into());
        }
        secret
    }

    /// What the controller signs is verified with the token.
    fn sign(token: &BootstrapToken, content: &str) {
        let mut secret = secret(token, content);
        let expiring = Token::from_secret(&secret);
        let now = Time::from_unix(1_800_000_000);
        assert!(expiring.time_to_expiry(now).is_some() || content.is_empty());
        let listed = ListedToken::from_secret(&secret).map(|listed| listed.token);
        assert_eq!(listed, Some(token.text()));
        secret.data.remove("expiration");
        let mut info = ConfigMap::default();
        info.data.insert(KUBECONFIG.to_owned(), content.to_owned());
        for (key, value) in signatures(&info, &[Token::from_secret(&secret)], now) {
            info.data.extend(value.map(|value| (key, value)));
        }
        assert!(
            signatures(&info, &[Token::from_secret(&secret)], now).is_empty(),
            "signed already"
        );
        assert_eq!(verified(&info, token).ok(), cluster_of(content).ok());
    }

    /// Reads a line as token, a line as signature, and the rest as what is signed, and as a pin and an authority.
    pub fn check(bytes: &[u8]) {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        if let Ok(pin) = parse_pin(text) {
            assert_eq!(parse_pin(&pin).ok(), Some(pin));
        }
        let mut lines = text.splitn(3, '\n');
        let mut next = || lines.next().unwrap_or_default();
        let (token, jws, content) = (next(), next(), next());
        let found = cluster_of(content);
        if let Ok(found) = &found {
            assert!(found.server.starts_with("https://"));
            if let Ok(own) = pins(Path::new("authority"), &found.authority) {
                assert!(check_pins(found, &own).is_ok() && check_pins(found, &[]).is_err());
            }
        }
        let Ok(token) = BootstrapToken::parse(token) else { return };
        sign(&token, content);
        let mut info = ConfigMap::default();
        info.data.insert(KUBECONFIG.to_owned(), content.to_owned());
        info.data.insert(signature_key(&token.id), jws.to_owned());
        let is_signed = jws == signature(&token.id, &token.secret, content);
        assert_eq!(verified(&info, &token).is_ok(), is_signed && found.is_ok());
    }

    /// A signed description of a cluster, one with a wrong signature, a pin, a time.
    pub fn seeds() -> Vec<Vec<u8>> {
        use base64::Engine as _;
        let authority = include_bytes!("../../../apiserver-lite/token/testdata/ec.crt");
        let authority = base64::engine::general_purpose::STANDARD.encode(authority);
        let content = format!(
            "clusters: [{{name: \"\", cluster: {{server: \"https://a:6443\", certificate-authority-data: {authority}}}}}]\n"
        );
        let jws = signature("abcdef", "0123456789abcdef", &content);
        crate::texts(&[
            &format!("abcdef.0123456789abcdef\n{jws}\n{content}"),
            &format!("abcdef.0123456789abcdeg\n{jws}\n{content}"),
            &format!("sha256:{}", "a0".repeat(32)),
            "abcdef.0123456789abcdef\n\n2027-01-15T08:00:01Z",
        ])
    }
}
