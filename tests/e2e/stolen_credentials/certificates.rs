//! Certificates that a node asks for: of another node's name, and of an administrator's.

use anyhow::{Result, ensure};
use orch_tests::wait::until;
use proto_api::certificates::v1::CertificateSigningRequest;
use proto_api::names::Names;
use proto_api::object::to_json_value;
use proto_client::{Client, DeleteParams, WriteParams};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::Value;

use super::target::Target;
use crate::context::PATIENCE;

/// Requests for the certificates of another node wait for an administrator. The controllers take requests one by one: when a later one of the node's own is
/// signed, they have seen them.
pub async fn those_of_another_node_wait(t: &Target, node: &Client) -> Result<()> {
    let (client, serving) = (t.names.node_client_signer(), t.names.node_serving_signer());
    let all = [
        ("stolen-client", &client, t.other.as_str(), "client auth", vec![]),
        ("stolen-serving", &serving, t.other.as_str(), "server auth", vec![t.other.clone()]),
        ("stolen-own", &client, t.own.as_str(), "client auth", vec![]),
    ];
    for (name, signer, of, usage, hosts) in &all {
        let subject = (format!("system:node:{of}"), "system:nodes");
        let request = certificate_request(name, signer, (&subject.0, subject.1), usage, hosts)?;
        node.all().create(&request, &WriteParams::default()).await?;
    }
    let requests = t.admin.all::<CertificateSigningRequest>();
    until("the node's own certificate is signed", PATIENCE, async || {
        let own = requests.get("stolen-own").await.map_err(|e| e.to_string())?;
        if own.status.certificate.is_empty() { Err(format!("{:?}", own.status)) } else { Ok(()) }
    })
    .await?;
    for name in ["stolen-client", "stolen-serving"] {
        let status = requests.get(name).await?.status;
        let waits = status.conditions.is_empty() && status.certificate.is_empty();
        ensure!(waits, "{name} is answered: {status:?}");
    }
    for (name, ..) in &all {
        requests.delete(name, &DeleteParams::default()).await?;
    }
    Ok(())
}

fn certificate_request(
    name: &str,
    signer: &str,
    (common_name, organization): (&str, &str),
    usage: &str,
    hosts: &[String],
) -> Result<CertificateSigningRequest> {
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.distinguished_name.push(DnType::OrganizationName, organization);
    let mut request = CertificateSigningRequest::default();
    request.metadata.name = name.to_owned();
    request.spec.request = params.serialize_request(&KeyPair::generate()?)?.pem()?.into();
    request.spec.signer_name = signer.to_owned();
    request.spec.usages = vec!["digital signature".to_owned(), usage.to_owned()];
    Ok(request)
}

/// A certificate request for the administrators' group.
pub fn request_for_masters(names: &Names) -> Result<Value> {
    let subject = ("admin", "system:masters");
    let signer = names.client_signer();
    let request = certificate_request("masters", &signer, subject, "client auth", &[])?;
    Ok(to_json_value(&request, names)?)
}
