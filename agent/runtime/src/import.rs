//! Imports images from an archive into containerd, without a registry.
//!
//! Content is written first, under a lease that protects it from garbage collection, then the names. containerd's CRI plugin
//! notices new names and lists the image a moment later; layers are unpacked for the first container that needs them.

use std::collections::HashMap;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use containerd_client::services::v1::content_client::ContentClient;
use containerd_client::services::v1::images_client::ImagesClient;
use containerd_client::services::v1::leases_client::LeasesClient;
use containerd_client::services::v1::{
    CreateImageRequest, CreateRequest, DeleteRequest, Image, InfoRequest, UpdateImageRequest,
    WriteAction, WriteContentRequest,
};
use containerd_client::types::Descriptor;
use futures_util::stream;
use proto_daemon::backoff::{Backoff, Retries};
use proto_daemon::panics;
use tokio::sync::mpsc;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::image::{Archive, ArchiveError, Blob, BlobSource, FoundImage, ImageTar};
use crate::runtime::{ImageRuntime, RuntimeError};

/// Bytes of content per message.
const CHUNK_LEN: usize = 256 << 10;
/// Messages buffered between the reading thread and the connection.
const CHUNKS_MAX: usize = 4;
/// Magic number of gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Largest size of an unpacked archive.
const UNPACKED_MAX: u64 = 64 << 30;
/// How long CRI may take to list a new image.
const SHOWN_WITHIN: Duration = Duration::from_secs(10);
/// Between two requests meanwhile.
const SHOWN_POLL: Backoff =
    Backoff { first: Duration::from_millis(2), longest: Duration::from_millis(100) };

/// Why an archive was not imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The archive's file cannot be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// It is not an image archive with an image for this platform.
    #[error("invalid image archive")]
    Archive(#[source] ArchiveError),
    /// A blob cannot be read.
    #[error("cannot read {digest} from the archive")]
    Read {
        /// Digest of the blob.
        digest: String,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The lease was not created.
    #[error("cannot create a lease for the content")]
    Lease(#[source] Status),
    /// The content store rejected a blob, usually because its digest does not match.
    #[error("cannot write content {digest}")]
    Content {
        /// Digest of the blob.
        digest: String,
        /// Cause.
        #[source]
        source: Status,
    },
    /// The image could not be created.
    #[error("cannot tag the image {name}")]
    Name {
        /// Name of the image.
        name: String,
        /// Cause.
        #[source]
        source: Status,
    },
}

/// Whether the kubelet's image garbage collection may remove the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageRetention {
    /// Never, because every pod needs it.
    Pinned,
    /// Like a pulled image.
    WhileUsed,
}

/// Imports an archive file; returns the names of its images.
///
/// # Errors
/// The file is not an image archive for this platform, or containerd rejects it.
pub async fn import_file(
    channel: Channel,
    namespace: &str,
    path: &Path,
    keep: ImageRetention,
) -> Result<Vec<String>, ImportError> {
    let path = path.to_owned();
    let open = move || {
        let opened = std::fs::File::open(&path).and_then(|file| unpack(file, &path));
        opened.map_err(|source| ImportError::Open { path, source })
    };
    import(channel, namespace, open, keep).await
}

/// The archive itself, or for a gzip file its unpacked content in an unlinked file next to it.
fn unpack(mut file: std::fs::File, path: &Path) -> std::io::Result<std::fs::File> {
    let mut magic = [0; GZIP.len()];
    let len = file.read(&mut magic)?;
    file.seek(SeekFrom::Start(0))?;
    if magic.get(..len) != Some(GZIP.as_slice()) {
        return Ok(file);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.unpacked"));
    let _ = std::fs::remove_file(&beside); // one that a crash left
    let mut whole =
        std::fs::File::options().read(true).write(true).create_new(true).open(&beside)?;
    std::fs::remove_file(&beside)?;
    let mut reader = flate2::read::MultiGzDecoder::new(file).take(UNPACKED_MAX);
    if std::io::copy(&mut reader, &mut whole)? == UNPACKED_MAX {
        return Err(std::io::Error::other("the archive unpacks to more than 64 GiB"));
    }
    whole.seek(SeekFrom::Start(0))?;
    Ok(whole)
}

/// Imports an archive in memory; returns the names of its images.
///
/// # Errors
/// containerd rejects it.
pub async fn import_tar(
    channel: Channel,
    namespace: &str,
    tar: &ImageTar,
    keep: ImageRetention,
) -> Result<Vec<String>, ImportError> {
    let bytes = tar.bytes().to_vec();
    import(channel, namespace, move || Ok(Cursor::new(bytes)), keep).await
}

/// Waits until the runtime lists an image that was just imported; returns whether it did in time.
///
/// # Errors
/// The runtime cannot be queried.
pub async fn wait_until_listed(
    runtime: &dyn ImageRuntime,
    name: &str,
) -> Result<bool, RuntimeError> {
    let began = tokio::time::Instant::now();
    let mut polls = Retries::new(SHOWN_POLL);
    while runtime.image(name).await?.is_none() {
        if began.elapsed() > SHOWN_WITHIN {
            return Ok(false);
        }
        tokio::time::sleep(polls.next_delay(1.0)).await;
    }
    Ok(true)
}

/// A request for a containerd namespace.
pub(crate) fn in_namespace<T>(message: T, namespace: &str) -> Request<T> {
    let mut request = Request::new(message);
    // A namespace that is not ASCII cannot exist; without the header containerd reports that.
    if let Ok(value) = namespace.parse() {
        request.metadata_mut().insert("containerd-namespace", value);
    }
    request
}

async fn import<R: Read + Seek + Send + 'static>(
    channel: Channel,
    namespace: &str,
    open: impl FnOnce() -> Result<R, ImportError> + Send + 'static,
    keep: ImageRetention,
) -> Result<Vec<String>, ImportError> {
    let reading = panics::spawn_blocking(move || {
        let mut file = open()?;
        let archive = Archive::read(&mut file).map_err(ImportError::Archive)?;
        Ok((file, archive))
    });
    let broken =
        |panicked| ImportError::Archive(ArchiveError::Read(std::io::Error::other(panicked)));
    let (file, archive) = reading.await.map_err(broken)??;
    let lease = Lease::take_lease(channel.clone(), namespace, &archive).await?;
    let import = Import { channel, namespace, lease: &lease.id, file: Arc::new(Mutex::new(file)) };
    let outcome = import.run(&archive, keep).await;
    lease.end().await;
    outcome
}

/// Protects new content from garbage collection until a name refers to it.
struct Lease {
    client: LeasesClient<Channel>,
    namespace: String,
    id: String,
}

impl Lease {
    /// The lease is named after its content, so that one left by a crash is reused and deleted by the next attempt.
    async fn take_lease(
        channel: Channel,
        namespace: &str,
        archive: &Archive,
    ) -> Result<Self, ImportError> {
        let mut client = LeasesClient::new(channel);
        let content = archive.images.first().map_or("", |image| &image.manifest.digest);
        let id = format!("import-{content}");
        let request = CreateRequest { id: id.clone(), labels: HashMap::new() };
        match client.create(in_namespace(request, namespace)).await {
            Ok(_) => {}
            Err(status) if status.code() == Code::AlreadyExists => {}
            Err(status) => return Err(ImportError::Lease(status)),
        }
        Ok(Self { client, namespace: namespace.into(), id })
    }

    async fn end(mut self) {
        let request = DeleteRequest { id: self.id, sync: false };
        if let Err(status) = self.client.delete(in_namespace(request, &self.namespace)).await {
            tracing::warn!(
                error = &status as &dyn std::error::Error,
                "cannot delete the lease of an image import; its content is not garbage collected until the archive is imported again"
            );
        }
    }
}

/// An import in progress.
struct Import<'a, R> {
    channel: Channel,
    namespace: &'a str,
    lease: &'a str,
    file: Arc<Mutex<R>>,
}

impl<R: Read + Seek + Send + 'static> Import<'_, R> {
    async fn run(
        &self,
        archive: &Archive,
        keep: ImageRetention,
    ) -> Result<Vec<String>, ImportError> {
        let mut names = Vec::new();
        for image in &archive.images {
            for layer in &image.layers {
                self.content(layer, HashMap::new()).await?;
            }
            self.content(&image.config, HashMap::new()).await?;
            self.content(&image.manifest, references(image)).await?;
            for name in &image.names {
                self.name(name, image, keep).await?;
                names.push(name.clone());
            }
        }
        Ok(names)
    }

    /// Writes a blob unless it exists. containerd verifies the digest on commit.
    async fn content(
        &self,
        blob: &Blob,
        labels: HashMap<String, String>,
    ) -> Result<(), ImportError> {
        let refused = |source| ImportError::Content { digest: blob.digest.clone(), source };
        let mut client = ContentClient::new(self.channel.clone());
        let info = InfoRequest { digest: blob.digest.clone() };
        if client.info(self.request(info)).await.is_ok() {
            return Ok(());
        }
        let (send, mut chunks) = mpsc::channel(CHUNKS_MAX);
        let (file, source) = (Arc::clone(&self.file), blob.clone());
        let reading = panics::spawn_blocking(move || read_chunks(&file, &source, labels, &send));
        let requests = stream::poll_fn(move |context| chunks.poll_recv(context));
        let written = async {
            let mut answers = client.write(self.request(requests)).await?.into_inner();
            while answers.message().await?.is_some() {}
            Ok(())
        };
        match written.await {
            Ok(()) => {}
            Err(status) if Status::code(&status) == Code::AlreadyExists => {}
            Err(status) => return Err(refused(status)),
        }
        let read = reading.await.unwrap_or_else(|panicked| Err(std::io::Error::other(panicked)));
        read.map_err(|source| ImportError::Read { digest: blob.digest.clone(), source })
    }

    async fn name(
        &self,
        name: &str,
        image: &FoundImage,
        keep: ImageRetention,
    ) -> Result<(), ImportError> {
        let mut client = ImagesClient::new(self.channel.clone());
        let labels = match keep {
            ImageRetention::Pinned => {
                HashMap::from([("io.cri-containerd.pinned".into(), "pinned".into())])
            }
            ImageRetention::WhileUsed => HashMap::new(),
        };
        let image = Image {
            name: name.into(),
            labels,
            target: Some(Descriptor {
                media_type: image.manifest.media_type.clone(),
                digest: image.manifest.digest.clone(),
                size: i64::try_from(image.manifest.size).unwrap_or(i64::MAX),
                ..Default::default()
            }),
            ..Default::default()
        };
        let create = CreateImageRequest { image: Some(image.clone()), ..Default::default() };
        let outcome = match client.create(self.request(create)).await {
            Err(status) if status.code() == Code::AlreadyExists => {
                let paths = vec!["target".into()];
                let update = UpdateImageRequest {
                    image: Some(image),
                    update_mask: Some(prost_types::FieldMask { paths }),
                    ..Default::default()
                };
                client.update(self.request(update)).await.map(drop)
            }
            outcome => outcome.map(drop),
        };
        outcome.map_err(|source| ImportError::Name { name: name.into(), source })
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = in_namespace(message, self.namespace);
        if let Ok(value) = self.lease.parse() {
            request.metadata_mut().insert("containerd-lease", value);
        }
        request
    }
}

/// Labels through which the garbage collector finds the content of a manifest.
fn references(image: &FoundImage) -> HashMap<String, String> {
    let config = ("containerd.io/gc.ref.content.config".into(), image.config.digest.clone());
    let layers = image.layers.iter().enumerate().map(|(number, layer)| {
        (format!("containerd.io/gc.ref.content.l.{number}"), layer.digest.clone())
    });
    std::iter::once(config).chain(layers).collect()
}

/// Sends a blob as write messages: its bytes, then the commit. Stops silently when the receiver is dropped, because then the
/// write has failed and reports why.
fn read_chunks<R: Read + Seek>(
    file: &Mutex<R>,
    blob: &Blob,
    labels: HashMap<String, String>,
    send: &mpsc::Sender<WriteContentRequest>,
) -> std::io::Result<()> {
    let mut file = file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut source: Box<dyn Read + '_> = match &blob.source {
        BlobSource::At(offset) => {
            file.seek(SeekFrom::Start(*offset))?;
            Box::new((&mut *file).take(blob.size))
        }
        BlobSource::Bytes(bytes) => Box::new(bytes.as_slice()),
    };
    let total = i64::try_from(blob.size).unwrap_or(i64::MAX);
    let message = |action, offset, data| WriteContentRequest {
        action: i32::from(action),
        r#ref: format!("import-{}", blob.digest),
        total,
        expected: blob.digest.clone(),
        offset,
        data,
        labels: HashMap::new(),
    };
    let mut offset = 0;
    loop {
        let mut data = Vec::new();
        source.by_ref().take(CHUNK_LEN as u64).read_to_end(&mut data)?;
        if data.is_empty() {
            break;
        }
        let length = i64::try_from(data.len()).unwrap_or(i64::MAX);
        if send.blocking_send(message(WriteAction::Write, offset, data)).is_err() {
            return Ok(());
        }
        offset = offset.saturating_add(length);
    }
    let commit = WriteContentRequest { labels, ..message(WriteAction::Commit, offset, Vec::new()) };
    let _ = send.blocking_send(commit);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_compressed_archive_is_unpacked_beside_itself_and_leaves_nothing() {
        let dir = tempfile::tempdir().expect("tempdir");
        let content = vec![7_u8; 300_000];
        let read = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).expect("written");
            let file = std::fs::File::open(&path).expect("there");
            let mut whole = Vec::new();
            unpack(file, &path).and_then(|mut file| file.read_to_end(&mut whole)).map(|_| whole)
        };
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&content).expect("packed");
        let packed = packed.finish().expect("packed");
        std::fs::write(dir.path().join(".a.tgz.unpacked"), "left by a crash").expect("written");
        assert_eq!(read("a.tgz", &packed).expect("unpacked"), content);
        assert_eq!(read("b.tar", &content).expect("as it is"), content);
        assert_eq!(read("c.tar", b"").expect("empty"), b"");
        assert!(read("d.tgz", &packed[..packed.len() / 2]).is_err(), "cut off");
        let left = std::fs::read_dir(dir.path()).expect("read").count();
        assert_eq!(left, 4, "the archives");
    }
}
