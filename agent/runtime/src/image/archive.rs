//! Parser of image archives: the images, their blobs, and where in the file each blob is.
//!
//! Nothing is unpacked; only the small JSON documents are held in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek, SeekFrom};

use ring::digest::{Context, SHA256};
use serde::Deserialize;
use serde_json::json;

use super::{CONFIG, LAYER, LAYER_GZIP, MANIFEST, architecture, blob_path, descriptor, digest_of};

/// Bytes that are hashed at a time.
const CHUNK_LEN: usize = 64 << 10;
/// Most entries of an archive.
const ENTRIES_MAX: usize = 20_000;
/// Largest JSON document (index, manifest, configuration).
const DOCUMENT_LEN_MAX: u64 = 4 << 20;
/// Most documents read from one archive: an index may refer to the same one repeatedly, or to itself.
const DOCUMENTS_MAX: usize = 4096;
/// Deepest nesting of indexes.
const INDEX_DEPTH_MAX: usize = 4;
const DOCKER_MANIFEST_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// Why an archive cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The file cannot be read or is not a tar.
    #[error("cannot read the archive")]
    Read(#[source] std::io::Error),
    #[error("the archive has more than {ENTRIES_MAX} entries")]
    TooManyEntries,
    /// Its documents refer to too many documents.
    #[error("the archive's documents refer to each other more than {DOCUMENTS_MAX} times")]
    TooManyDocuments,
    /// Neither an OCI layout nor a docker archive.
    #[error("the archive has neither index.json nor manifest.json")]
    NoIndex,
    /// The index refers to a missing file.
    #[error("{path} is named by the archive's index but is not in it")]
    Missing {
        /// Path inside the archive.
        path: String,
    },
    /// A JSON document is too large.
    #[error("{path} is larger than {DOCUMENT_LEN_MAX} bytes")]
    DocumentTooLarge {
        /// Path inside the archive.
        path: String,
    },
    /// A JSON document does not have the expected form.
    #[error("{path} is not a valid document of its kind in an image archive")]
    Malformed {
        /// Path inside the archive.
        path: String,
        /// The JSON error.
        #[source]
        source: serde_json::Error,
    },
    /// It contains no image for this platform.
    #[error("the archive has no image for linux/{}", architecture())]
    NoImage,
}

/// The images of an archive for this platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archive {
    /// The images and their names.
    pub images: Vec<FoundImage>,
}

/// An image of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundImage {
    /// Full references, e.g. `docker.io/library/busybox:1`; may be empty.
    pub names: Vec<String>,
    pub manifest: Blob,
    /// Its configuration.
    pub config: Blob,
    /// Its layers, lowest first.
    pub layers: Vec<Blob>,
}

/// A blob and its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    pub media_type: String,
    /// `sha256:<hex>`.
    pub digest: String,
    /// Length in bytes.
    pub size: u64,
    /// Location of its bytes.
    pub source: BlobSource,
}

/// Location of a blob's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlobSource {
    /// At this offset in the archive.
    At(u64),
    /// Generated: the manifest of a docker archive, which has none.
    Bytes(Vec<u8>),
}

impl Archive {
    /// Reads the images of an archive.
    ///
    /// # Errors
    /// It is not an image archive, is truncated, or has no image for this platform.
    pub fn read<R: Read + Seek>(file: &mut R) -> Result<Self, ArchiveError> {
        let mut reader =
            Reader { entries: entries(file)?, file, documents: 0, hashed: BTreeMap::new() };
        let images = if reader.entries.contains_key("index.json") {
            reader.oci()?
        } else if reader.entries.contains_key("manifest.json") {
            reader.docker()?
        } else {
            return Err(ArchiveError::NoIndex);
        };
        if images.is_empty() { Err(ArchiveError::NoImage) } else { Ok(Self { images }) }
    }
}

/// The full form of an image name: registry, repository, tag or digest.
pub(crate) fn canonical(name: &str) -> String {
    let qualified = match name.split_once('/') {
        Some((registry, _)) if registry.contains(['.', ':']) || registry == "localhost" => {
            name.to_owned()
        }
        Some(_) => format!("docker.io/{name}"),
        None => format!("docker.io/library/{name}"),
    };
    let last = qualified.rsplit('/').next().unwrap_or_default();
    if last.contains([':', '@']) { qualified } else { format!("{qualified}:latest") }
}

#[derive(Clone, Copy)]
struct Extent {
    offset: u64,
    size: u64,
}

fn entries<R: Read + Seek>(file: &mut R) -> Result<BTreeMap<String, Extent>, ArchiveError> {
    // An entry at the end of a truncated archive is listed as if it were there.
    let len = file.seek(SeekFrom::End(0)).map_err(ArchiveError::Read)?;
    file.rewind().map_err(ArchiveError::Read)?;
    let mut archive = tar::Archive::new(file);
    let mut found = BTreeMap::new();
    let mut links = Vec::new();
    for (count, entry) in archive.entries_with_seek().map_err(ArchiveError::Read)?.enumerate() {
        if count == ENTRIES_MAX {
            return Err(ArchiveError::TooManyEntries);
        }
        let entry = entry.map_err(ArchiveError::Read)?;
        let path = entry.path().map_err(ArchiveError::Read)?;
        let path = path.to_string_lossy().trim_start_matches("./").to_owned();
        if entry.header().entry_type().is_symlink() {
            // Older `docker save` links a repeated layer to the first one, relative to its directory.
            if let Some(target) = entry.link_name().map_err(ArchiveError::Read)? {
                links.push((path, target.to_string_lossy().trim_start_matches("../").to_owned()));
            }
        } else if entry.header().entry_type().is_file() {
            let extent = Extent { offset: entry.raw_file_position(), size: entry.size() };
            if extent.offset.checked_add(extent.size).is_none_or(|end| end > len) {
                let cause = std::io::ErrorKind::UnexpectedEof.into();
                return Err(ArchiveError::Read(cause));
            }
            found.insert(path, extent);
        }
    }
    for (path, target) in links {
        if let Some(extent) = found.get(&target).copied() {
            found.insert(path, extent);
        }
    }
    Ok(found)
}

struct Reader<'a, R> {
    file: &'a mut R,
    entries: BTreeMap<String, Extent>,
    /// Number of documents read so far.
    documents: usize,
    /// Digests by offset, so that a layer listed repeatedly is hashed once.
    hashed: BTreeMap<u64, String>,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Descriptor {
    #[serde(rename = "mediaType", default)]
    media_type: String,
    digest: String,
    platform: Option<Platform>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl Platform {
    fn is_ours(&self) -> bool {
        self.os == "linux" && self.architecture == architecture()
    }
}

impl<R: Read + Seek> Reader<'_, R> {
    fn oci(&mut self) -> Result<Vec<FoundImage>, ArchiveError> {
        let index: Index = self.document("index.json")?;
        let mut images: Vec<FoundImage> = Vec::new();
        for entry in index.manifests {
            let name = ["io.containerd.image.name", "org.opencontainers.image.ref.name"]
                .iter()
                .find_map(|key| entry.annotations.get(*key))
                .map(|name| canonical(name));
            let Some(mut image) = self.image(&entry, 0)? else { continue };
            // Archives usually have one entry per name; entries with the same manifest are one image.
            match images.iter_mut().find(|seen| seen.manifest.digest == image.manifest.digest) {
                Some(seen) => seen.names.extend(name),
                None => {
                    image.names.extend(name);
                    images.push(image);
                }
            }
        }
        Ok(images)
    }

    /// The image of a descriptor; nested indexes are followed to the entry for this platform.
    fn image(
        &mut self,
        entry: &Descriptor,
        depth: usize,
    ) -> Result<Option<FoundImage>, ArchiveError> {
        if depth == INDEX_DEPTH_MAX || entry.platform.as_ref().is_some_and(|p| !p.is_ours()) {
            return Ok(None);
        }
        let path = blob_path(&entry.digest);
        if entry.media_type == super::INDEX || entry.media_type == DOCKER_MANIFEST_LIST {
            let index: Index = self.document(&path)?;
            for inner in &index.manifests {
                if !self.entries.contains_key(&blob_path(&inner.digest)) {
                    continue; // exports of one platform keep the whole index
                }
                if let Some(image) = self.image(inner, depth.saturating_add(1))? {
                    return Ok(Some(image));
                }
            }
            return Ok(None);
        }
        let manifest: Manifest = self.document(&path)?;
        Ok(Some(FoundImage {
            names: Vec::new(),
            manifest: self.blob(entry)?,
            config: self.blob(&manifest.config)?,
            layers: manifest
                .layers
                .iter()
                .map(|layer| self.blob(layer))
                .collect::<Result<_, _>>()?,
        }))
    }

    fn blob(&self, descriptor: &Descriptor) -> Result<Blob, ArchiveError> {
        let extent = self.extent(&blob_path(&descriptor.digest))?;
        Ok(Blob {
            media_type: descriptor.media_type.clone(),
            digest: descriptor.digest.clone(),
            size: extent.size,
            source: BlobSource::At(extent.offset),
        })
    }

    fn docker(&mut self) -> Result<Vec<FoundImage>, ArchiveError> {
        let listed: Vec<DockerImage> = self.document("manifest.json")?;
        listed.into_iter().map(|image| self.docker_image(&image)).collect()
    }

    fn docker_image(&mut self, image: &DockerImage) -> Result<FoundImage, ArchiveError> {
        let config = self.hashed(&image.config, CONFIG)?;
        let mut layers = Vec::with_capacity(image.layers.len());
        for path in &image.layers {
            let media_type = if self.is_gzip(path)? { LAYER_GZIP } else { LAYER };
            layers.push(self.hashed(path, media_type)?);
        }
        let describe = |blob: &Blob| json!({ "mediaType": blob.media_type, "digest": blob.digest, "size": blob.size });
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": describe(&config),
            "layers": layers.iter().map(describe).collect::<Vec<_>>(),
        });
        let manifest = manifest.to_string().into_bytes();
        let described = descriptor(MANIFEST, &manifest);
        let tags: BTreeSet<_> =
            image.repo_tags.iter().flatten().map(|tag| canonical(tag)).collect();
        Ok(FoundImage {
            names: tags.into_iter().collect(),
            manifest: Blob {
                media_type: MANIFEST.into(),
                digest: described["digest"].as_str().unwrap_or_default().into(),
                size: manifest.len() as u64,
                source: BlobSource::Bytes(manifest),
            },
            config,
            layers,
        })
    }

    /// A blob of a docker archive, whose name does not contain its digest.
    fn hashed(&mut self, path: &str, media_type: &str) -> Result<Blob, ArchiveError> {
        let extent = self.extent(path)?;
        let digest = match self.hashed.get(&extent.offset) {
            Some(digest) => digest.clone(),
            None => {
                let digest = hash(self.open(extent)?).map_err(ArchiveError::Read)?;
                self.hashed.insert(extent.offset, digest.clone());
                digest
            }
        };
        Ok(Blob {
            media_type: media_type.into(),
            digest,
            size: extent.size,
            source: BlobSource::At(extent.offset),
        })
    }

    fn is_gzip(&mut self, path: &str) -> Result<bool, ArchiveError> {
        let mut start = Vec::new();
        let extent = self.extent(path)?;
        self.open(extent)?.take(2).read_to_end(&mut start).map_err(ArchiveError::Read)?;
        Ok(start == [0x1f, 0x8b])
    }

    fn document<T: for<'de> Deserialize<'de>>(&mut self, path: &str) -> Result<T, ArchiveError> {
        self.documents = self.documents.saturating_add(1);
        if self.documents > DOCUMENTS_MAX {
            return Err(ArchiveError::TooManyDocuments);
        }
        let extent = self.extent(path)?;
        if extent.size > DOCUMENT_LEN_MAX {
            return Err(ArchiveError::DocumentTooLarge { path: path.into() });
        }
        let mut text = Vec::new();
        self.open(extent)?.read_to_end(&mut text).map_err(ArchiveError::Read)?;
        serde_json::from_slice(&text)
            .map_err(|source| ArchiveError::Malformed { path: path.into(), source })
    }

    fn extent(&self, path: &str) -> Result<Extent, ArchiveError> {
        self.entries.get(path).copied().ok_or_else(|| ArchiveError::Missing { path: path.into() })
    }

    fn open(&mut self, extent: Extent) -> Result<impl Read, ArchiveError> {
        self.file.seek(SeekFrom::Start(extent.offset)).map_err(ArchiveError::Read)?;
        Ok((&mut self.file).take(extent.size))
    }
}

fn hash(mut blob: impl Read) -> std::io::Result<String> {
    let mut hashed = Context::new(&SHA256);
    let mut chunk = vec![0; CHUNK_LEN];
    loop {
        match blob.read(&mut chunk)? {
            0 => return Ok(digest_of(hashed.finish())),
            len => hashed.update(chunk.get(..len).unwrap_or_default()),
        }
    }
}
