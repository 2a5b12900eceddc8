//! Image archives: how one is built from nothing, and what is found in one that somebody else built.
//!
//! An archive is an OCI image layout in a tar, the form that `docker save`, `ctr images export`, buildah and skopeo write today;
//! [`Archive`] also reads the older docker form (`manifest.json` beside loose layers). Building is deterministic: the same files
//! give the same digest.

mod archive;

pub use archive::{Archive, ArchiveError, Blob, FoundImage, Source};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Media types of the OCI image specification.
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub(crate) const LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// One file of an image. Its directories are made, mode 0755; everything belongs to root.
#[derive(Clone, Debug)]
pub enum ImageFile<'a> {
    /// A regular file.
    Regular {
        /// Path from the image's root, without a leading slash.
        path: &'a str,
        /// Permission bits.
        mode: u32,
        /// Content.
        data: Vec<u8>,
    },
    /// A symbolic link.
    Link {
        /// Path from the image's root, without a leading slash.
        path: &'a str,
        /// What it points to.
        target: &'a str,
    },
}

/// An image archive in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageTar {
    bytes: Vec<u8>,
}

impl ImageTar {
    /// An image of one uncompressed layer holding `files`, known as `name` and started with `entrypoint`.
    #[must_use]
    pub fn single_layer(name: &str, files: &[ImageFile<'_>], entrypoint: &[&str]) -> Self {
        let layer = layer(files);
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": { "Entrypoint": entrypoint, "Env": ["PATH=/bin:/usr/bin:/sbin:/usr/sbin"] },
            "rootfs": { "type": "layers", "diff_ids": [digest(&layer)] },
        });
        let config = config.to_string().into_bytes();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(CONFIG, &config),
            "layers": [descriptor(LAYER, &layer)],
        });
        let manifest = manifest.to_string().into_bytes();
        let mut entry = descriptor(MANIFEST, &manifest);
        entry["annotations"] =
            json!({ "io.containerd.image.name": name, "org.opencontainers.image.ref.name": name });
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [entry] });
        let mut tar = TarWriter::default();
        tar.file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#);
        tar.file("index.json", 0o644, index.to_string().as_bytes());
        for blob in [&manifest, &config, &layer] {
            tar.file(&blob_path(&digest(blob)), 0o644, blob);
        }
        Self { bytes: tar.finish() }
    }

    /// The archive's bytes, as a file to write or to import.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

fn layer(files: &[ImageFile<'_>]) -> Vec<u8> {
    let mut tar = TarWriter::default();
    let mut made = std::collections::BTreeSet::new();
    for file in files {
        let (ImageFile::Regular { path, .. } | ImageFile::Link { path, .. }) = file;
        for (slash, _) in path.match_indices('/') {
            let parent = &path[..slash];
            if made.insert(parent.to_owned()) {
                tar.directory(parent);
            }
        }
        match file {
            ImageFile::Regular { path, mode, data } => tar.file(path, *mode, data),
            ImageFile::Link { path, target } => tar.link(path, target),
        }
    }
    tar.finish()
}

/// `sha256:<hex>` of `bytes`.
pub(crate) fn digest(bytes: &[u8]) -> String {
    digest_of(Sha256::new_with_prefix(bytes))
}

pub(crate) fn digest_of(hash: Sha256) -> String {
    use std::fmt::Write as _;
    hash.finalize().iter().fold(String::from("sha256:"), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}

pub(crate) fn descriptor(media_type: &str, blob: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": digest(blob), "size": blob.len() })
}

/// Where a layout keeps the blob of `digest`.
pub(crate) fn blob_path(digest: &str) -> String {
    format!("blobs/{}", digest.replacen(':', "/", 1))
}

/// This machine's architecture as image configurations spell it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Tar in memory with everything that would vary (times, owners) at zero.
struct TarWriter(tar::Builder<Vec<u8>>);

impl Default for TarWriter {
    fn default() -> Self {
        Self(tar::Builder::new(Vec::new()))
    }
}

impl TarWriter {
    fn directory(&mut self, path: &str) {
        self.entry(&format!("{path}/"), tar::EntryType::Directory, 0o755, &[]);
    }

    fn file(&mut self, path: &str, mode: u32, data: &[u8]) {
        self.entry(path, tar::EntryType::Regular, mode, data);
    }

    #[expect(clippy::expect_used, reason = "the writer is a Vec")]
    fn link(&mut self, path: &str, target: &str) {
        let mut header = header(tar::EntryType::Symlink, 0o777);
        header.set_size(0);
        self.0
            .append_link(&mut header, path, target)
            .expect("invariant: writing to memory succeeds, and paths here fit a tar header");
    }

    #[expect(clippy::expect_used, reason = "the writer is a Vec")]
    fn entry(&mut self, path: &str, kind: tar::EntryType, mode: u32, data: &[u8]) {
        let mut header = header(kind, mode);
        header.set_size(data.len() as u64);
        self.0
            .append_data(&mut header, path, data)
            .expect("invariant: writing to memory succeeds, and paths here fit a tar header");
    }

    #[expect(clippy::expect_used, reason = "the writer is a Vec")]
    fn finish(self) -> Vec<u8> {
        self.0.into_inner().expect("invariant: writing to memory succeeds")
    }
}

fn header(kind: tar::EntryType, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

#[cfg(test)]
mod tests;
