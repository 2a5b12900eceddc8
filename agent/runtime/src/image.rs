//! Image archives: building and reading.
//!
//! An archive is an OCI image layout in a tar file, the format written by current `docker save`, `ctr images export`, buildah and
//! skopeo; [`Archive`] also reads docker's older format (`manifest.json` and layers). Builds are deterministic: the same files
//! give the same digest.

mod archive;

pub use archive::{Archive, ArchiveError, Blob, BlobSource, FoundImage};

use data_encoding::HEXLOWER;
use ring::digest::{Digest, SHA256};
use serde_json::{Value, json};

/// Media types of the OCI image specification.
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub(crate) const LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// A file of an image. Parent directories are created with mode 0755; owner is root.
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
        /// Target of the link.
        target: &'a str,
    },
    /// An empty directory.
    Directory {
        /// Path from the image's root, without a leading or trailing slash.
        path: &'a str,
        /// Permission bits, 01777 for a `/tmp`.
        mode: u32,
    },
}

/// An image archive in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageTar {
    bytes: Vec<u8>,
}

impl ImageTar {
    /// Builds an image with one uncompressed layer of `files`, named `name`, with the entry point `entrypoint`.
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

    /// The bytes of the archive.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

fn layer(files: &[ImageFile<'_>]) -> Vec<u8> {
    let mut tar = TarWriter::default();
    let mut made = std::collections::BTreeSet::new();
    for file in files {
        let (ImageFile::Regular { path, .. }
        | ImageFile::Link { path, .. }
        | ImageFile::Directory { path, .. }) = file;
        for (slash, _) in path.match_indices('/') {
            let parent = &path[..slash];
            if made.insert(parent.to_owned()) {
                tar.directory(parent, 0o755);
            }
        }
        match file {
            ImageFile::Regular { path, mode, data } => tar.file(path, *mode, data),
            ImageFile::Link { path, target } => tar.link(path, target),
            ImageFile::Directory { path, mode } => tar.directory(path, *mode),
        }
    }
    tar.finish()
}

/// `sha256:<hex>` of `bytes`.
pub(crate) fn digest(bytes: &[u8]) -> String {
    digest_of(ring::digest::digest(&SHA256, bytes))
}

pub(crate) fn digest_of(digest: Digest) -> String {
    format!("sha256:{}", HEXLOWER.encode(digest.as_ref()))
}

pub(crate) fn descriptor(media_type: &str, blob: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": digest(blob), "size": blob.len() })
}

/// Path of the blob of `digest` in the layout.
pub(crate) fn blob_path(digest: &str) -> String {
    format!("blobs/{}", digest.replacen(':', "/", 1))
}

/// This machine's architecture in image configurations.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// A tar archive in memory; times and owners are 0.
struct TarWriter(tar::Builder<Vec<u8>>);

impl Default for TarWriter {
    fn default() -> Self {
        Self(tar::Builder::new(Vec::new()))
    }
}

impl TarWriter {
    fn directory(&mut self, path: &str, mode: u32) {
        self.entry(&format!("{path}/"), tar::EntryType::Directory, mode, &[]);
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
