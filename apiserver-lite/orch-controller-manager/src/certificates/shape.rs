//! What a certificate request asks for, and whether its signer may give that. Pure.

use std::collections::BTreeSet;

use proto_api::certificates::v1::CertificateSigningRequest;
use proto_api::names::Names;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

/// A request of one of the signers that are known here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A node agent's, to show to the API server.
    NodeClient(Own),
    /// A node agent's, to serve with.
    NodeServing,
    /// Anybody's, to show to the API server.
    Client,
}

/// Whether who asks is whom the certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// A renewal.
    Yes,
    /// The first: somebody else's credential is used.
    No,
}

const NODES: &str = "system:nodes";
const NODE: &str = "system:node:";
/// Who is in it may do everything: no request leads there.
const MASTERS: &str = "system:masters";

/// What is in a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Asked {
    name: String,
    organizations: Vec<String>,
    /// DNS names and addresses.
    hosts: usize,
    /// Any other alternative names.
    others: usize,
}

/// The shape of a request; nothing when its signer is not known here.
///
/// # Errors
/// Why its signer must not sign it.
pub fn of(names: &Names, request: &CertificateSigningRequest) -> Result<Option<Shape>, String> {
    let spec = &request.spec;
    let signer = spec.signer_name.as_str();
    if signer == names.node_client_signer() {
        let asked = read(&spec.request)?;
        node(&asked)?;
        refuse(asked.hosts + asked.others > 0, "names and addresses are not allowed")?;
        usages(&spec.usages, "client auth")?;
        let own = if spec.username == asked.name { Own::Yes } else { Own::No };
        return Ok(Some(Shape::NodeClient(own)));
    }
    if signer == names.node_serving_signer() {
        let asked = read(&spec.request)?;
        node(&asked)?;
        refuse(asked.name != spec.username, "the common name is not who asks")?;
        refuse(asked.hosts == 0, "a name or an address is required")?;
        refuse(asked.others > 0, "only names and addresses are allowed")?;
        usages(&spec.usages, "server auth")?;
        return Ok(Some(Shape::NodeServing));
    }
    if signer == names.client_signer() {
        let asked = read(&spec.request)?;
        refuse(asked.organizations.len() > 1, "more than one organization cannot be signed here")?;
        let masters = asked.organizations.iter().any(|organization| organization == MASTERS);
        refuse(masters, "use of system:masters is not allowed")?;
        refuse(asked.hosts + asked.others > 0, "names and addresses are not allowed")?;
        usages(&spec.usages, "client auth")?;
        return Ok(Some(Shape::Client));
    }
    Ok(None)
}

fn node(asked: &Asked) -> Result<(), String> {
    refuse(asked.organizations != [NODES], "the organization is not system:nodes")?;
    let name = asked.name.strip_prefix(NODE).unwrap_or_default();
    refuse(name.is_empty(), "the common name does not begin with system:node:")
}

/// Exactly that use, for signing, and for enciphering keys where the key can.
fn usages(usages: &[String], auth: &str) -> Result<(), String> {
    let given: BTreeSet<&str> = usages.iter().map(String::as_str).collect();
    let needed = BTreeSet::from(["digital signature", auth]);
    let mut more = needed.clone();
    more.insert("key encipherment");
    refuse(given != needed && given != more, "the usages are not those of the signer")
}

fn refuse(is_wrong: bool, why: &str) -> Result<(), String> {
    if is_wrong { Err(why.to_owned()) } else { Ok(()) }
}

fn read(pem: &[u8]) -> Result<Asked, String> {
    let no_request = "is no certificate request in PEM";
    let (_, block) = x509_parser::pem::parse_x509_pem(pem).map_err(|_| no_request)?;
    let (_, parsed) =
        X509CertificationRequest::from_der(&block.contents).map_err(|_| no_request)?;
    let subject = &parsed.certification_request_info.subject;
    let texts = |values: Vec<Result<&str, _>>| -> Result<Vec<String>, String> {
        values
            .into_iter()
            .map(|value: Result<&str, x509_parser::error::X509Error>| {
                value.map(str::to_owned).map_err(|_| no_request.to_owned())
            })
            .collect()
    };
    let names = texts(subject.iter_common_name().map(|name| name.as_str()).collect())?;
    let [name] = &names[..] else { return Err("must have one common name".to_owned()) };
    let mut asked = Asked {
        name: name.clone(),
        organizations: texts(subject.iter_organization().map(|name| name.as_str()).collect())?,
        ..Asked::default()
    };
    for extension in parsed.requested_extensions().into_iter().flatten() {
        let ParsedExtension::SubjectAlternativeName(alternative) = extension else { continue };
        for name in &alternative.general_names {
            match name {
                GeneralName::DNSName(_) | GeneralName::IPAddress(_) => asked.hosts += 1,
                _ => asked.others += 1,
            }
        }
    }
    Ok(asked)
}

#[cfg(test)]
pub(super) mod tests {
    use proto_api::certificates::v1::CertificateSigningRequestSpec;
    use proto_api::names::Profile;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    pub(in super::super) fn request(
        signer: &str,
        organization: &str,
        name: &str,
        hosts: &[&str],
        auth: &str,
    ) -> CertificateSigningRequest {
        let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).expect("names");
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, organization);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("key");
        let pem = params.serialize_request(&key).expect("request").pem().expect("PEM");
        let spec = CertificateSigningRequestSpec {
            request: pem.into_bytes(),
            signer_name: signer.into(),
            usages: ["digital signature", "key encipherment", auth].map(str::to_owned).into(),
            username: "system:node:n1".into(),
            ..CertificateSigningRequestSpec::default()
        };
        CertificateSigningRequest { spec, ..CertificateSigningRequest::default() }
    }

    #[test]
    fn each_signer_gives_what_it_is_for_and_no_more() {
        let names = Names::new(Profile::Kubernetes);
        let (client, serving) = (names.node_client_signer(), names.node_serving_signer());
        assert_eq!(client, "kubernetes.io/kube-apiserver-client-kubelet");
        assert_eq!(serving, "kubernetes.io/kubelet-serving");
        let check = |signer: &str, organization: &str, name: &str, hosts: &[&str], auth: &str| {
            of(names, &request(signer, organization, name, hosts, auth))
        };
        let node = "system:node:n1";
        assert_eq!(
            check(&client, NODES, node, &[], "client auth"),
            Ok(Some(Shape::NodeClient(Own::Yes)))
        );
        assert_eq!(
            check(&client, NODES, "system:node:n2", &[], "client auth"),
            Ok(Some(Shape::NodeClient(Own::No)))
        );
        assert_eq!(
            check(&serving, NODES, node, &["n1", "10.0.0.1"], "server auth"),
            Ok(Some(Shape::NodeServing))
        );
        let anybody = names.client_signer();
        assert_eq!(check(&anybody, "devs", "jane", &[], "client auth"), Ok(Some(Shape::Client)));
        assert_eq!(check("example.org/mine", NODES, node, &[], "client auth"), Ok(None));
        for (signer, organization, name, hosts, auth) in [
            (&client, MASTERS, node, &[][..], "client auth"),
            (&client, NODES, "admin", &[], "client auth"),
            (&client, NODES, NODE, &[], "client auth"),
            (&client, NODES, node, &["n1"], "client auth"),
            (&client, NODES, node, &[], "server auth"),
            (&serving, NODES, node, &[], "server auth"),
            (&serving, NODES, "system:node:n2", &["n2"], "server auth"),
            (&anybody, MASTERS, "jane", &[], "client auth"),
            (&anybody, "devs", "jane", &[], "server auth"),
        ] {
            assert!(
                check(signer, organization, name, hosts, auth).is_err(),
                "{signer} {organization} {name} {hosts:?} {auth}"
            );
        }
        let mut nonsense = request(&client, NODES, node, &[], "client auth");
        nonsense.spec.request = b"nonsense".to_vec();
        assert!(of(names, &nonsense).is_err());
    }
}
