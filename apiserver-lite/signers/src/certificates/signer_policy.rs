//! The policies of the signers: whether a certificate request may be signed. Pure.

use proto_api::certificates::v1::CertificateSigningRequest;
use proto_api::names::Names;

use super::request::{CertificateRequest, RequestError, RequestedNames, read};

/// The known signers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignerKind {
    /// `kube-apiserver-client-kubelet`.
    NodeClient(Renewal),
    /// `kubelet-serving`.
    NodeServing,
    /// `kube-apiserver-client`.
    Client,
    /// `legacy-unknown`.
    Legacy,
}

/// Whether the requester is the subject of the certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// A renewal.
    Yes,
    /// The first certificate, requested with another credential such as a bootstrap token.
    No,
}

/// A decoded request that its signer may sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovedRequest {
    pub signer: SignerKind,
    /// The names and the key.
    pub request: CertificateRequest,
}

/// Why a signer must not sign a request: its requester has to send another one, or to another signer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignerPolicyError {
    /// No signer can sign it.
    #[error(transparent)]
    Unreadable(#[from] RequestError),
    /// The signer does not certify these names, or not for this user.
    #[error("{0}")]
    Names(&'static str),
    /// The signer does not certify these usages.
    #[error("{0}")]
    Usages(String),
}

const NODES: &str = "system:nodes";
const NODE: &str = "system:node:";
/// The group with all permissions, which no request may contain.
const MASTERS: &str = "system:masters";

const SIGNATURE: &str = "digital signature";
const ENCIPHERMENT: &str = "key encipherment";
const CLIENT: &str = "client auth";
const SERVER: &str = "server auth";

/// Checks a request; none if its signer is not known.
///
/// # Errors
/// Why the signer must not sign it.
pub fn check_request(
    names: &Names,
    request: &CertificateSigningRequest,
) -> Result<Option<ApprovedRequest>, SignerPolicyError> {
    let spec = &request.spec;
    let checks = [
        (names.node_client_signer(), node_client as Check),
        (names.node_serving_signer(), node_serving),
        (names.client_signer(), client),
        (names.legacy_signer(), legacy),
    ];
    let Some((_, check)) = checks.into_iter().find(|(signer, _)| *signer == spec.signer_name)
    else {
        return Ok(None);
    };
    let read = read(&spec.request)?;
    let signer = check(&read.asked, &spec.usages, &spec.username)?;
    Ok(Some(ApprovedRequest { signer, request: read }))
}

/// Checks names, usages and requester by the signer's policy.
type Check = fn(&RequestedNames, &[String], &str) -> Result<SignerKind, SignerPolicyError>;

fn node_client(
    asked: &RequestedNames,
    usages: &[String],
    user: &str,
) -> Result<SignerKind, SignerPolicyError> {
    node(asked)?;
    refuse_names(!asked.dns.is_empty(), "DNS subjectAltNames are not allowed")?;
    refuse_names(!asked.addresses.is_empty(), "IP subjectAltNames are not allowed")?;
    only_hosts(asked)?;
    node_usages(usages, CLIENT)?;
    Ok(SignerKind::NodeClient(if user == asked.subject.common_name() {
        Renewal::Yes
    } else {
        Renewal::No
    }))
}

fn node_serving(
    asked: &RequestedNames,
    usages: &[String],
    user: &str,
) -> Result<SignerKind, SignerPolicyError> {
    node(asked)?;
    refuse_names(
        asked.subject.common_name() != user,
        "subject common name is not the user of the request",
    )?;
    let hosts = asked.dns.len().saturating_add(asked.addresses.len());
    refuse_names(hosts == 0, "DNS or IP subjectAltName is required")?;
    only_hosts(asked)?;
    node_usages(usages, SERVER)?;
    Ok(SignerKind::NodeServing)
}

fn client(
    asked: &RequestedNames,
    usages: &[String],
    _: &str,
) -> Result<SignerKind, SignerPolicyError> {
    refuse_names(asked.subject.common_name().is_empty(), "subject common name is required")?;
    not_masters(asked)?;
    let allowed = [CLIENT, SIGNATURE, ENCIPHERMENT];
    if let Some(other) = usages.iter().find(|usage| !allowed.contains(&usage.as_str())) {
        return Err(SignerPolicyError::Usages(format!(
            "invalid usage for client certificate: {other}"
        )));
    }
    if !usages.iter().any(|usage| usage == CLIENT) {
        let missing = "missing required usage for client certificate: client auth";
        return Err(SignerPolicyError::Usages(missing.to_owned()));
    }
    Ok(SignerKind::Client)
}

/// Names and usages are free, but the same CA signs client certificates that the API server trusts.
fn legacy(
    asked: &RequestedNames,
    usages: &[String],
    _: &str,
) -> Result<SignerKind, SignerPolicyError> {
    not_masters(asked)?;
    match usages.iter().find(|usage| super::authority::usage(usage).is_none()) {
        Some(unknown) => Err(SignerPolicyError::Usages(format!("unrecognized usage: {unknown}"))),
        None => Ok(SignerKind::Legacy),
    }
}

fn node(asked: &RequestedNames) -> Result<(), SignerPolicyError> {
    refuse_names(
        asked.subject.organizations() != [NODES],
        "subject organization is not system:nodes",
    )?;
    let name = asked.subject.common_name().strip_prefix(NODE).unwrap_or_default();
    refuse_names(name.is_empty(), "subject common name does not begin with system:node:")
}

fn only_hosts(asked: &RequestedNames) -> Result<(), SignerPolicyError> {
    refuse_names(!asked.emails.is_empty(), "Email subjectAltNames are not allowed")?;
    refuse_names(!asked.uris.is_empty(), "URI subjectAltNames are not allowed")
}

fn not_masters(asked: &RequestedNames) -> Result<(), SignerPolicyError> {
    refuse_names(
        asked.subject.organizations().contains(&MASTERS),
        "use of system:masters is not allowed",
    )
}

/// The usages must be `usage`, `digital signature` and optionally `key encipherment`.
fn node_usages(usages: &[String], auth: &str) -> Result<(), SignerPolicyError> {
    let has = |wanted: &str| usages.iter().any(|usage| usage == wanted);
    let known = [SIGNATURE, ENCIPHERMENT, auth];
    let other = usages.iter().any(|usage| !known.contains(&usage.as_str()));
    if other || !has(SIGNATURE) || !has(auth) {
        return Err(SignerPolicyError::Usages(format!(
            "usages did not match [{}]",
            known.join(" ")
        )));
    }
    Ok(())
}

fn refuse_names(are_wrong: bool, why: &'static str) -> Result<(), SignerPolicyError> {
    if are_wrong { Err(SignerPolicyError::Names(why)) } else { Ok(()) }
}

#[cfg(test)]
pub(super) mod tests {
    use proto_api::certificates::v1::CertificateSigningRequestSpec;
    use proto_api::names::Profile;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    const NODE_1: &str = "system:node:n1";

    pub(in super::super) fn pem(
        organization: &str,
        name: &str,
        alternatives: impl FnOnce(&mut CertificateParams),
    ) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, organization);
        params.distinguished_name.push(DnType::CommonName, name);
        alternatives(&mut params);
        let key = KeyPair::generate().expect("key");
        params.serialize_request(&key).expect("request").pem().expect("PEM")
    }

    pub(in super::super) fn request(
        signer: &str,
        organization: &str,
        name: &str,
        hosts: &[&str],
        auth: &str,
    ) -> CertificateSigningRequest {
        let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let named = CertificateParams::new(hosts).expect("names").subject_alt_names;
        let request = pem(organization, name, |params| params.subject_alt_names = named);
        let spec = CertificateSigningRequestSpec {
            request: request.into_bytes(),
            signer_name: signer.into(),
            usages: ["digital signature", "key encipherment", auth].map(str::to_owned).into(),
            username: NODE_1.into(),
            ..CertificateSigningRequestSpec::default()
        };
        CertificateSigningRequest { spec, ..CertificateSigningRequest::default() }
    }

    fn check_signer(
        request: &CertificateSigningRequest,
    ) -> Result<Option<SignerKind>, SignerPolicyError> {
        let checked = check_request(Names::new(Profile::Kubernetes), request)?;
        Ok(checked.map(|checked| checked.signer))
    }

    #[test]
    fn each_signer_gives_what_it_is_for_and_no_more() {
        let names = Names::new(Profile::Kubernetes);
        let (node_client, serving) = (names.node_client_signer(), names.node_serving_signer());
        let (client_signer, legacy) = (names.client_signer(), names.legacy_signer());
        assert_eq!(node_client, "kubernetes.io/kube-apiserver-client-kubelet");
        assert_eq!(serving, "kubernetes.io/kubelet-serving");
        assert_eq!(client_signer, "kubernetes.io/kube-apiserver-client");
        assert_eq!(legacy, "kubernetes.io/legacy-unknown");
        let check = |signer: &str, organization: &str, name: &str, hosts: &[&str], auth: &str| {
            check_signer(&request(signer, organization, name, hosts, auth))
        };
        for (signer, organization, name, hosts, auth, expect) in [
            (&node_client, NODES, NODE_1, &[][..], CLIENT, SignerKind::NodeClient(Renewal::Yes)),
            (
                &node_client,
                NODES,
                "system:node:n2",
                &[],
                CLIENT,
                SignerKind::NodeClient(Renewal::No),
            ),
            (&serving, NODES, NODE_1, &["n1", "10.0.0.1"], SERVER, SignerKind::NodeServing),
            (&client_signer, "devs", "jane", &[], CLIENT, SignerKind::Client),
            (
                &client_signer,
                "devs",
                "jane",
                &["jane.example.org", "fd00::1"],
                CLIENT,
                SignerKind::Client,
            ),
            (&legacy, "devs", "", &["web"], SERVER, SignerKind::Legacy),
        ] {
            assert_eq!(
                check(signer, organization, name, hosts, auth),
                Ok(Some(expect)),
                "{signer}"
            );
        }
        assert_eq!(check("example.org/mine", NODES, NODE_1, &[], CLIENT), Ok(None));
        for (signer, organization, name, hosts, auth, expect) in [
            (&node_client, MASTERS, NODE_1, &[][..], CLIENT, "organization is not system:nodes"),
            (&node_client, NODES, "admin", &[], CLIENT, "does not begin with system:node:"),
            (&node_client, NODES, NODE, &[], CLIENT, "does not begin with system:node:"),
            (&node_client, NODES, NODE_1, &["n1"], CLIENT, "DNS subjectAltNames are not allowed"),
            (&node_client, NODES, NODE_1, &["::1"], CLIENT, "IP subjectAltNames are not allowed"),
            (&node_client, NODES, NODE_1, &[], SERVER, "usages did not match"),
            (&serving, NODES, NODE_1, &[], SERVER, "DNS or IP subjectAltName is required"),
            (&serving, NODES, "system:node:n2", &["n2"], SERVER, "not the user of the request"),
            (&client_signer, MASTERS, "jane", &[], CLIENT, "system:masters is not allowed"),
            (&client_signer, "devs", "", &[], CLIENT, "common name is required"),
            (&client_signer, "devs", "jane", &[], SERVER, "invalid usage for client certificate"),
            (&legacy, MASTERS, "jane", &[], CLIENT, "system:masters is not allowed"),
            (&legacy, "devs", "jane", &[], "flying", "unrecognized usage: flying"),
        ] {
            let error =
                check(signer, organization, name, hosts, auth).expect_err(expect).to_string();
            assert!(error.contains(expect), "{signer} {organization} {name} {hosts:?}: {error}");
        }
    }

    #[test]
    fn usages_are_those_of_the_signer() {
        let names = Names::new(Profile::Kubernetes);
        let check = |signer: &str, hosts: &[&str], usages: &[&str], expect: bool| {
            let mut request = request(signer, NODES, NODE_1, hosts, CLIENT);
            request.spec.usages = usages.iter().map(|usage| (*usage).to_owned()).collect();
            assert_eq!(check_signer(&request).is_ok(), expect, "{signer} {usages:?}");
        };
        let (any, node) = (names.client_signer(), names.node_client_signer());
        check(&any, &[], &[CLIENT], true);
        check(&any, &[], &[CLIENT, ENCIPHERMENT], true);
        check(&any, &[], &[SIGNATURE, ENCIPHERMENT], false);
        check(&any, &[], &[CLIENT, SERVER], false);
        check(&any, &[], &[], false);
        check(&node, &[], &[CLIENT], false);
        check(&node, &[], &[CLIENT, SIGNATURE], true);
        check(&node, &[], &[CLIENT, SIGNATURE, ENCIPHERMENT, SERVER], false);
        let serving = names.node_serving_signer();
        check(&serving, &["n1"], &[SERVER, SIGNATURE, ENCIPHERMENT], true);
        check(&serving, &["n1"], &[SERVER], false);
        check(&serving, &["n1"], &[CLIENT, SIGNATURE, ENCIPHERMENT], false);
    }
}
