//! A request for a certificate.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::X509Name;

use super::common::{number, time};
use super::{Context, Page};
use crate::{age, objects};

/// Parts of a subject after the common name: their object identifiers and titles.
const PARTS: [(&str, &str); 7] = [
    ("2.5.4.10", "Organization"),
    ("2.5.4.11", "Organizational Unit"),
    ("2.5.4.6", "Country"),
    ("2.5.4.7", "Locality"),
    ("2.5.4.8", "Province"),
    ("2.5.4.9", "StreetAddress"),
    ("2.5.4.17", "PostalCode"),
];
const COMMON_NAME: &str = "2.5.4.3";
const SERIAL_NUMBER: &str = "2.5.4.5";

pub(super) fn describe(page: &mut Page, object: &Value, _: Context<'_>) {
    let text = |pointer: &str| objects::text_at(object, pointer);
    page.field(0, "Name", objects::name(object));
    page.field(0, "Labels", objects::pairs(objects::map_at(object, "/metadata/labels")));
    page.field(0, "Annotations", objects::pairs(objects::map_at(object, "/metadata/annotations")));
    page.field(0, "CreationTimestamp", time(object, "/metadata/creationTimestamp"));
    page.field(0, "Requesting User", text("/spec/username"));
    if !text("/spec/signerName").is_empty() {
        page.field(0, "Signer", text("/spec/signerName"));
    }
    if object.pointer("/spec/expirationSeconds").is_some() {
        let seconds = u64::try_from(number(object, "/spec/expirationSeconds")).unwrap_or_default();
        page.field(0, "Requested Duration", age::of_seconds(seconds));
    }
    page.field(0, "Status", status(object));
    let pem = STANDARD.decode(text("/spec/request")).unwrap_or_default();
    let der = parse_x509_pem(&pem).map(|(_, pem)| pem.contents).unwrap_or_default();
    match X509CertificationRequest::from_der(&der) {
        Ok((_, request)) => describe_request(page, &request),
        Err(_) => page.line(0, "the request is no certificate signing request"),
    }
}

/// Conditions, and whether the certificate was made.
fn status(object: &Value) -> String {
    let has = |kind: &str| {
        let mut conditions = objects::list_at(object, "/status/conditions").iter();
        conditions.any(|one| objects::text_at(one, "/type") == kind)
    };
    let decision = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (_, true) => "Approved",
        _ => "Pending",
    };
    let mut status = decision.to_owned();
    if has("Failed") {
        status.push_str(",Failed");
    }
    if !objects::text_at(object, "/status/certificate").is_empty() {
        status.push_str(",Issued");
    }
    status
}

fn describe_request(page: &mut Page, request: &X509CertificationRequest<'_>) {
    let subject = &request.certification_request_info.subject;
    page.line(0, "Subject:");
    for (oid, title) in [(COMMON_NAME, "Common Name"), (SERIAL_NUMBER, "Serial Number")] {
        let value = values(subject, oid).pop().unwrap_or_default();
        page.line(0, format!("\t{title}:\t{}", in_one_line(&value)));
    }
    for (oid, title) in PARTS {
        lines(page, title, &values(subject, oid));
    }
    let names: Vec<(&str, String)> = alternative_names(request);
    if names.is_empty() {
        return;
    }
    page.line(0, "Subject Alternative Names:");
    for title in ["DNS Names", "Email Addresses", "URIs", "IP Addresses"] {
        let of_it = names.iter().filter(|(kind, _)| *kind == title);
        let of_it: Vec<String> = of_it.map(|(_, name)| name.clone()).collect();
        lines(page, title, &of_it);
    }
}

/// Values below each other, beside their title.
fn lines(page: &mut Page, title: &str, values: &[String]) {
    for (at, value) in values.iter().enumerate() {
        let title = if at == 0 { format!("{title}:") } else { String::new() };
        page.line(0, format!("\t{title}\t{}", in_one_line(value)));
    }
}

/// A value that its requester chose, who must not write lines of the page.
fn in_one_line(value: &str) -> String {
    value.replace(char::is_control, "\u{fffd}")
}

fn values(subject: &X509Name<'_>, oid: &str) -> Vec<String> {
    let attributes = subject.iter_attributes();
    let of_it = attributes.filter(|one| one.attr_type().to_id_string() == oid);
    // Whatever kind of string it is: who approves the request sees all of them.
    of_it.map(|one| String::from_utf8_lossy(one.as_slice()).into_owned()).collect()
}

fn alternative_names(request: &X509CertificationRequest<'_>) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    for extension in request.requested_extensions().into_iter().flatten() {
        let ParsedExtension::SubjectAlternativeName(names) = extension else { continue };
        for name in &names.general_names {
            match name {
                GeneralName::DNSName(name) => found.push(("DNS Names", (*name).to_owned())),
                GeneralName::RFC822Name(name) => {
                    found.push(("Email Addresses", (*name).to_owned()))
                }
                GeneralName::URI(uri) => found.push(("URIs", (*uri).to_owned())),
                GeneralName::IPAddress(bytes) => {
                    found.extend(address(bytes).map(|ip| ("IP Addresses", ip.to_string())));
                }
                _ => {}
            }
        }
    }
    found
}

fn address(bytes: &[u8]) -> Option<std::net::IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(std::net::IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(std::net::IpAddr::from)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requester_hides_no_part_of_the_subject_and_writes_no_line() {
        // An organization as a T61String, which is not read as text: SEQUENCE, SET, SEQUENCE, OID 2.5.4.10, "a\nb".
        let name = [
            0x30, 0x0e, 0x31, 0x0c, 0x30, 0x0a, 0x06, 0x03, 0x55, 0x04, 0x0a, 0x14, 0x03, b'a',
            b'\n', b'b',
        ];
        let (_, subject) = X509Name::from_der(&name).expect("a name");
        let found = values(&subject, "2.5.4.10");
        assert_eq!(found, ["a\nb"]);
        assert_eq!(in_one_line(&found[0]), "a\u{fffd}b");
    }
}
