//! Lists, watch events and envelopes, assembled from encoded objects.

use crate::object::Kind;
use crate::value::write_json_string;
use crate::wire::{Reader, WireValue, put_bytes, put_key, put_len, put_varint};

/// Magic prefix of Protobuf bodies.
pub const PROTOBUF_MAGIC: [u8; 4] = *b"k8s\0";

/// Metadata of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListMeta {
    /// Revision of the list.
    pub resource_version: String,
    /// Token of the next page; empty on the last one.
    pub continue_token: String,
    /// Number of items after this page, if known.
    pub remaining: Option<i64>,
}

/// Encodes a list of `kind` in JSON. `items` are objects encoded by [`crate::Engine::encode_json`]; their `kind` and `apiVersion`
/// are left out, as in kube-apiserver's lists.
pub fn list_json<'a>(
    kind: &Kind,
    meta: &ListMeta,
    items: impl IntoIterator<Item = &'a [u8]>,
) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(b"{\"kind\":");
    write_json_string(&mut out, &kind.list_kind());
    out.extend_from_slice(b",\"apiVersion\":");
    write_json_string(&mut out, &kind.api_version);
    out.extend_from_slice(b",\"metadata\":");
    write_list_meta(&mut out, meta);
    out.extend_from_slice(b",\"items\":[");
    for (at, item) in items.into_iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.push(b'{');
        out.extend_from_slice(without_type_meta(kind, item));
    }
    out.extend_from_slice(b"]}");
    out
}

/// An encoded object after `{"kind":…,"apiVersion":…,`.
fn without_type_meta<'a>(kind: &Kind, object: &'a [u8]) -> &'a [u8] {
    let body = object.strip_prefix(b"{").unwrap_or(object);
    match body.strip_prefix(kind.type_meta_json.as_bytes()) {
        // As in kube-apiserver's lists of custom objects.
        Some(_) if kind.custom.is_some() => body,
        Some(rest) => rest.strip_prefix(b",").unwrap_or(rest),
        None => body,
    }
}

pub(crate) fn write_list_meta(out: &mut Vec<u8>, meta: &ListMeta) {
    let start = out.len().saturating_add(1);
    out.push(b'{');
    let texts = [("resourceVersion", &meta.resource_version), ("continue", &meta.continue_token)];
    for (name, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
        if out.len() > start {
            out.push(b',');
        }
        write_json_string(out, name);
        out.push(b':');
        write_json_string(out, text);
    }
    if let Some(remaining) = meta.remaining {
        if out.len() > start {
            out.push(b',');
        }
        out.extend_from_slice(format!("\"remainingItemCount\":{remaining}").as_bytes());
    }
    out.push(b'}');
}

/// Encodes a list of `kind` in Protobuf. `items` are objects encoded by [`crate::Engine::encode_protobuf`].
pub fn list_protobuf(
    kind: &Kind,
    meta: &ListMeta,
    items: impl IntoIterator<Item: AsRef<[u8]>>,
) -> Vec<u8> {
    let mut head = Vec::new();
    put_bytes(&mut head, 1, b""); // selfLink
    put_bytes(&mut head, 2, meta.resource_version.as_bytes());
    put_bytes(&mut head, 3, meta.continue_token.as_bytes());
    if let Some(remaining) = meta.remaining {
        put_key(&mut head, 4, 0);
        put_varint(&mut head, remaining as u64);
    }
    let mut body = Vec::new();
    put_bytes(&mut body, 1, &head);
    for item in items {
        let item = item.as_ref();
        put_bytes(&mut body, 2, open_envelope(item).map_or(item, |envelope| envelope.raw));
    }
    envelope(&kind.api_version, &kind.list_kind(), &body)
}

/// One line of a JSON watch stream, newline included.
pub fn watch_event_json(event: &str, object: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(object.len().saturating_add(32));
    out.extend_from_slice(b"{\"type\":");
    write_json_string(&mut out, event);
    out.extend_from_slice(b",\"object\":");
    out.extend_from_slice(object);
    out.extend_from_slice(b"}\n");
    out
}

/// One frame of a Protobuf watch stream without the object in its envelope, which follows and has this many bytes: the big-endian length of the rest in
/// four bytes, then the event.
pub fn watch_event_head(event: &str, object_len: usize) -> Vec<u8> {
    let mut object_head = Vec::new();
    put_len(&mut object_head, 1, object_len);
    let mut out = vec![0; 4];
    put_bytes(&mut out, 1, event.as_bytes());
    put_len(&mut out, 2, object_head.len().saturating_add(object_len));
    out.extend_from_slice(&object_head);
    // Objects are bounded by the body limit, 3 MiB.
    let len = out.len().saturating_sub(4).saturating_add(object_len);
    out[..4].copy_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
    out
}

/// Wraps an encoded message in the envelope that names its kind.
pub fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut type_meta =
        Vec::with_capacity(api_version.len().saturating_add(kind.len()).saturating_add(4));
    put_bytes(&mut type_meta, 1, api_version.as_bytes());
    put_bytes(&mut type_meta, 2, kind.as_bytes());
    let mut out = Vec::with_capacity(raw.len().saturating_add(type_meta.len()).saturating_add(16));
    out.extend_from_slice(&PROTOBUF_MAGIC);
    put_bytes(&mut out, 1, &type_meta);
    put_bytes(&mut out, 2, raw);
    put_bytes(&mut out, 3, b""); // contentEncoding
    put_bytes(&mut out, 4, b""); // contentType
    out
}

/// The content of an envelope.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Envelope<'a> {
    pub(crate) api_version: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) raw: &'a [u8],
}

/// Parses an envelope; `None` if it is invalid or has an unsupported content encoding.
pub(crate) fn open_envelope(bytes: &[u8]) -> Option<Envelope<'_>> {
    let mut reader = Reader(bytes.strip_prefix(&PROTOBUF_MAGIC)?);
    let mut envelope = Envelope::default();
    while let Some((number, value)) = reader.field().ok()? {
        match (number, value) {
            (1, WireValue::Bytes(bytes)) => {
                let mut reader = Reader(bytes);
                while let Some((number, value)) = reader.field().ok()? {
                    match (number, value) {
                        (1, WireValue::Bytes(text)) => {
                            envelope.api_version = str::from_utf8(text).ok()?
                        }
                        (2, WireValue::Bytes(text)) => envelope.kind = str::from_utf8(text).ok()?,
                        _ => {}
                    }
                }
            }
            (2, WireValue::Bytes(bytes)) => envelope.raw = bytes,
            (3, WireValue::Bytes(encoding)) if !encoding.is_empty() => return None,
            _ => {}
        }
    }
    Some(envelope)
}
