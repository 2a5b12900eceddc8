//! Trees of files as tar: written from local files, and unpacked below one place and nowhere else. Archives come from containers, which may be hostile.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use proto_daemon::private_files;
use tar::{Archive, Builder, EntryType, Header, PaxExtensions};
use tokio::sync::mpsc;

/// Most entries of an archive.
const ENTRIES_MAX: usize = 1_000_000;
/// Most entries that are named as left out.
const SKIPPED_MAX: usize = 10_000;
/// Longest record of an entry's name and attributes, in bytes.
const ATTRIBUTES_LEN_MAX: u64 = 64 << 10;
/// Deepest tree.
const DEPTH_MAX: usize = 256;

/// Writes what is sent to an async task; for a blocking thread.
pub struct PipeWriter(pub mpsc::Sender<Bytes>);

impl Write for PipeWriter {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Bytes::copy_from_slice(data));
        sent.map(|()| data.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads what an async task sends; for a blocking thread.
pub struct PipeReader {
    pieces: mpsc::Receiver<Bytes>,
    rest: Bytes,
}

impl PipeReader {
    /// Of these pieces.
    pub fn new(pieces: mpsc::Receiver<Bytes>) -> Self {
        Self { pieces, rest: Bytes::new() }
    }
}

impl Read for PipeReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.rest = piece,
                None => return Ok(0),
            }
        }
        let len = buffer.len().min(self.rest.len());
        let piece = self.rest.split_to(len);
        if let Some(to) = buffer.get_mut(..len) {
            to.copy_from_slice(&piece);
        }
        Ok(len)
    }
}

/// Writes a file or directory as entries below `name`. Links are followed at the top only; below it they are entries of their own, so that nothing is
/// written through one. What is neither file, directory nor link stays out, and is returned.
///
/// # Errors
/// When a file or link cannot be read, or the tree is too deep.
pub fn pack(source: &Path, name: &Path, out: impl Write) -> io::Result<Vec<PathBuf>> {
    let mut builder = Builder::new(out);
    let mut skipped = Vec::new();
    let metadata = fs::metadata(source)?;
    pack_entry(source, name, &metadata, 0, &mut builder, &mut skipped)?;
    builder.finish()?;
    builder.into_inner()?.flush()?;
    Ok(skipped)
}

fn pack_entry(
    source: &Path,
    name: &Path,
    metadata: &fs::Metadata,
    depth: usize,
    builder: &mut Builder<impl Write>,
    skipped: &mut Vec<PathBuf>,
) -> io::Result<()> {
    if depth > DEPTH_MAX {
        return Err(io::Error::other(format!(
            "{} is deeper than {DEPTH_MAX} directories",
            source.display()
        )));
    }
    let mut header = Header::new_gnu();
    header.set_metadata(metadata);
    if metadata.is_dir() {
        builder.append_data(&mut header, name, io::empty())?;
        let mut entries = fs::read_dir(source)?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let metadata = entry.metadata()?; // does not follow links
            let below = name.join(entry.file_name());
            pack_entry(
                &entry.path(),
                &below,
                &metadata,
                depth.saturating_add(1),
                builder,
                skipped,
            )?;
        }
        return Ok(());
    }
    if metadata.is_symlink() {
        return builder.append_link(&mut header, name, fs::read_link(source)?);
    }
    if !metadata.is_file() {
        skipped.push(source.to_owned());
        return Ok(());
    }
    let file = fs::File::open(source)?;
    // A file that grows meanwhile would break the archive.
    builder.append_data(&mut header, name, file.take(metadata.len()))
}

/// What was not unpacked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedEntries {
    /// Its name in the archive.
    pub name: String,
    /// Why.
    pub reason: &'static str,
}

/// Unpacks an archive whose entries all lie below `prefix`: the entry `prefix` itself becomes `target`. Links and devices are not made, and nothing is
/// written outside of `target` or through a link in it. What is written is at most as large as the archive.
///
/// # Errors
/// When the archive is broken, too large or has sparse files, or a file cannot be written.
pub fn unpack(archive: impl Read, prefix: &Path, target: &Path) -> io::Result<Vec<SkippedEntries>> {
    let mut archive = Archive::new(archive);
    let mut skipped = Vec::new();
    let prefix: Option<PathBuf> = plain(prefix);
    let mut long_name = None;
    // Raw, since the library reads records of names and attributes whatever their length.
    for (at, entry) in archive.entries()?.raw(true).enumerate() {
        if at >= ENTRIES_MAX {
            return Err(io::Error::other(format!(
                "the archive has more than {ENTRIES_MAX} entries"
            )));
        }
        let mut entry = entry?;
        match entry.header().entry_type() {
            EntryType::GNULongName => {
                long_name = Some(without_end(attributes(&mut entry)?));
                continue;
            }
            EntryType::XHeader => {
                long_name = name_of_attributes(&attributes(&mut entry)?)?.or(long_name);
                continue;
            }
            // A link's target, and attributes of the whole archive.
            EntryType::GNULongLink | EntryType::XGlobalHeader => continue,
            EntryType::GNUSparse => return Err(sparse()),
            _ => {}
        }
        let name = match long_name.take() {
            Some(name) => PathBuf::from(OsString::from_vec(name)),
            None => entry.path()?.into_owned(),
        };
        let mut skip = |reason| {
            if skipped.len() < SKIPPED_MAX {
                skipped.push(SkippedEntries { name: name.display().to_string(), reason });
            } else if skipped.len() == SKIPPED_MAX {
                skipped.push(SkippedEntries {
                    name: "others".to_owned(),
                    reason: "they are too many to name",
                });
            }
        };
        let below = plain(&name).zip(prefix.as_ref());
        let below =
            below.and_then(|(name, prefix)| Some(name.strip_prefix(prefix).ok()?.to_owned()));
        let Some(below) = below else {
            skip("it lies outside of what was asked for");
            continue;
        };
        let place =
            if below.as_os_str().is_empty() { target.to_owned() } else { target.join(&below) };
        if leads_through_a_link(target, &below)? {
            skip("its place is a link, or below one");
            continue;
        }
        let kind = entry.header().entry_type();
        match kind {
            EntryType::Directory => private_files::create_missing_dir(&place)?,
            EntryType::Regular | EntryType::Continuous => {
                if let (false, Some(parent)) = (below.as_os_str().is_empty(), place.parent()) {
                    private_files::create_missing_dir(parent)?;
                }
                write_file(&mut entry, &place)?;
            }
            EntryType::Symlink | EntryType::Link => skip("it is a link"),
            _ => skip("it is neither a file nor a directory"),
        }
    }
    Ok(skipped)
}

fn write_file(entry: &mut tar::Entry<'_, impl Read>, place: &Path) -> io::Result<()> {
    let mode = entry.header().mode()? & 0o777;
    let mut file = private_files::create_or_empty(place, mode)?;
    let len = entry.size();
    if io::copy(entry, &mut file)? == len {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the archive ends within a file"))
}

/// The record of an entry that describes the next one.
fn attributes(entry: &mut tar::Entry<'_, impl Read>) -> io::Result<Vec<u8>> {
    if entry.size() > ATTRIBUTES_LEN_MAX {
        let text = format!("attributes of an entry have more than {ATTRIBUTES_LEN_MAX} bytes");
        return Err(io::Error::other(text));
    }
    let mut record = Vec::new();
    entry.read_to_end(&mut record)?;
    Ok(record)
}

/// A text of C.
fn without_end(mut text: Vec<u8>) -> Vec<u8> {
    text.truncate(text.iter().position(|byte| *byte == 0).unwrap_or(text.len()));
    text
}

/// The name that POSIX attributes give.
fn name_of_attributes(record: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut name = None;
    for attribute in PaxExtensions::new(record) {
        let attribute = attribute?;
        match attribute.key_bytes() {
            b"path" => name = Some(attribute.value_bytes().to_vec()),
            b"size" => return Err(io::Error::other("the archive has a file of more than 8 GiB")),
            key if key.starts_with(b"GNU.sparse") => return Err(sparse()),
            _ => {}
        }
    }
    Ok(name)
}

fn sparse() -> io::Error {
    io::Error::other("the archive has sparse files, which are not unpacked")
}

/// A path without its root and `.`; `None` if it has `..`.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => plain.push(part),
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(plain)
}

/// Whether a part of the path below `target` is a link, or the last of several.
fn leads_through_a_link(target: &Path, below: &Path) -> io::Result<bool> {
    let mut path = target.to_owned();
    for part in below.components() {
        path.push(part);
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_symlink() => return Ok(true),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Permissions of a mode, for tests and callers that compare them.
pub fn mode_of(path: &Path) -> io::Result<u32> {
    Ok(fs::metadata(path)?.permissions().mode() & 0o777)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn archive(entries: &[(&str, EntryType, &[u8])]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (name, kind, content) in entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_size(content.len() as u64);
            header.set_mode(0o640);
            if matches!(kind, EntryType::Symlink | EntryType::Link) {
                header.set_link_name("/etc/passwd").expect("a name");
            }
            // The library would refuse hostile names.
            header.as_gnu_mut().expect("gnu").name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_cksum();
            builder.append(&header, *content).expect("in memory");
        }
        builder.into_inner().expect("in memory")
    }

    #[test]
    fn a_tree_comes_back_as_it_was() {
        let from = tempfile::tempdir().expect("directory");
        fs::create_dir(from.path().join("sub")).expect("directory");
        fs::write(from.path().join("a"), "one").expect("file");
        fs::write(from.path().join("sub/b"), "two").expect("file");
        fs::set_permissions(from.path().join("sub/b"), fs::Permissions::from_mode(0o754))
            .expect("mode");
        let mut packed = Vec::new();
        let skipped = pack(from.path(), Path::new("tree"), &mut packed).expect("packed");
        assert_eq!(skipped, [] as [PathBuf; 0]);
        let to = tempfile::tempdir().expect("directory");
        let target = to.path().join("copy");
        let skipped = unpack(packed.as_slice(), Path::new("tree"), &target).expect("unpacked");
        assert_eq!(skipped, []);
        assert_eq!(fs::read_to_string(target.join("a")).expect("file"), "one");
        assert_eq!(fs::read_to_string(target.join("sub/b")).expect("file"), "two");
        assert_eq!(mode_of(&target.join("sub/b")).expect("mode"), 0o754);
    }

    #[test]
    fn links_of_a_tree_are_packed_as_links() {
        let from = tempfile::tempdir().expect("directory");
        let long = format!("../{}", "n".repeat(150));
        let links = [("dir", "/etc"), ("lib.so", "lib.so.1"), ("long", long.as_str())];
        for (name, target) in links {
            symlink(target, from.path().join(name)).expect("link");
        }
        let socket = from.path().join("socket");
        let _bound = std::os::unix::net::UnixListener::bind(&socket).expect("bound");
        let top = from.path().join("top");
        symlink(from.path().join("file"), &top).expect("link");
        fs::write(from.path().join("file"), "one").expect("file");
        let mut packed = Vec::new();
        pack(&top, Path::new("t"), &mut packed).expect("packed");
        let kinds = |packed: &[u8]| -> Vec<EntryType> {
            let mut archive = Archive::new(packed);
            let entries = archive.entries().expect("an archive");
            entries.map(|entry| entry.expect("an entry").header().entry_type()).collect()
        };
        assert_eq!(kinds(&packed), [EntryType::Regular], "a link at the top is followed");
        fs::remove_file(&top).expect("a link");
        let mut packed = Vec::new();
        let skipped = pack(from.path(), Path::new("tree"), &mut packed).expect("packed");
        assert_eq!(skipped, [socket]);
        let mut archive = Archive::new(packed.as_slice());
        let mut found = Vec::new();
        for entry in archive.entries().expect("an archive") {
            let entry = entry.expect("an entry");
            if entry.header().entry_type() == EntryType::Symlink {
                let name = entry.path().expect("a name").display().to_string();
                let target = entry.link_name().expect("a target").expect("a target").into_owned();
                found.push((name, target, entry.size()));
            }
        }
        let wanted = links.map(|(name, target)| (format!("tree/{name}"), PathBuf::from(target), 0));
        assert_eq!(found, wanted);
        // They are not made where an archive of a container is unpacked.
        let to = tempfile::tempdir().expect("directory");
        let target = to.path().join("copy");
        let skipped = unpack(packed.as_slice(), Path::new("tree"), &target).expect("unpacked");
        assert_eq!(skipped.len(), links.len());
        assert_eq!(fs::read_dir(&target).expect("a directory").count(), 1);
    }

    #[test]
    fn one_file_becomes_the_target() {
        let to = tempfile::tempdir().expect("directory");
        let packed = archive(&[("tmp/x", EntryType::Regular, b"new")]);
        let target = to.path().join("y");
        fs::write(&target, "an old and longer text").expect("file");
        unpack(packed.as_slice(), Path::new("/tmp/x"), &target).expect("unpacked");
        assert_eq!(fs::read_to_string(&target).expect("file"), "new");
    }

    #[test]
    fn nothing_is_written_outside() {
        let to = tempfile::tempdir().expect("directory");
        let target = to.path().join("target");
        fs::create_dir(&target).expect("directory");
        symlink(to.path(), target.join("out")).expect("link");
        let packed = archive(&[
            ("d/../../evil", EntryType::Regular, b"x"),
            ("/etc/evil", EntryType::Regular, b"x"),
            ("other/evil", EntryType::Regular, b"x"),
            ("d/out/evil", EntryType::Regular, b"x"),
            ("d/out", EntryType::Regular, b"x"),
            ("d/link", EntryType::Symlink, b""),
            ("d/link/evil", EntryType::Regular, b"fine: a directory of this name"),
            ("d/hard", EntryType::Link, b""),
            ("d/fifo", EntryType::Fifo, b""),
            ("d/good", EntryType::Regular, b"good"),
        ]);
        let skipped = unpack(packed.as_slice(), Path::new("d"), &target).expect("unpacked");
        let names: Vec<&str> = skipped.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "d/../../evil",
                "/etc/evil",
                "other/evil",
                "d/out/evil",
                "d/out",
                "d/link",
                "d/hard",
                "d/fifo"
            ]
        );
        let mut all: Vec<_> = fs::read_dir(to.path())
            .expect("directory")
            .map(|e| e.expect("entry").file_name())
            .collect();
        all.sort();
        assert_eq!(all, ["target"]);
        assert_eq!(fs::read_to_string(target.join("good")).expect("file"), "good");
    }

    #[test]
    fn long_names_are_read_and_endless_ones_refused() {
        let to = tempfile::tempdir().expect("directory");
        let long = format!("d/{}", "n".repeat(200));
        let mut builder = Builder::new(Vec::new());
        let mut header = Header::new_gnu();
        header.set_size(1);
        header.set_mode(0o600);
        builder.append_data(&mut header, &long, &b"x"[..]).expect("in memory");
        let packed = builder.into_inner().expect("in memory");
        let target = to.path().join("t");
        assert_eq!(unpack(packed.as_slice(), Path::new("d"), &target).expect("unpacked"), []);
        assert_eq!(fs::read_to_string(target.join("n".repeat(200))).expect("file"), "x");
        let endless = vec![b'n'; 100_000];
        for kind in [EntryType::GNULongName, EntryType::XHeader] {
            let packed = archive(&[("n", kind, &endless), ("d/a", EntryType::Regular, b"x")]);
            assert!(unpack(packed.as_slice(), Path::new("d"), &to.path().join("u")).is_err());
        }
    }

    /// A header of some bytes would become a file that fills the disk.
    #[test]
    fn sparse_files_are_refused() {
        let to = tempfile::tempdir().expect("directory");
        for packed in [
            archive(&[("d/a", EntryType::GNUSparse, b"x")]),
            archive(&[
                ("p", EntryType::XHeader, b"22 GNU.sparse.major=1\n"),
                ("d/a", EntryType::Regular, b"x"),
            ]),
        ] {
            assert!(unpack(packed.as_slice(), Path::new("d"), &to.path().join("t")).is_err());
        }
    }

    #[test]
    fn a_file_that_is_there_keeps_its_mode() {
        let to = tempfile::tempdir().expect("directory");
        let target = to.path().join("secret");
        fs::write(&target, "old").expect("file");
        fs::set_permissions(&target, fs::Permissions::from_mode(0o600)).expect("mode");
        let packed = archive(&[("x", EntryType::Regular, b"new")]);
        unpack(packed.as_slice(), Path::new("x"), &target).expect("unpacked");
        assert_eq!(mode_of(&target).expect("mode"), 0o600);
    }

    #[test]
    fn a_cut_archive_is_an_error() {
        let to = tempfile::tempdir().expect("directory");
        let mut packed = archive(&[("d/a", EntryType::Regular, &[7; 2000])]);
        packed.truncate(1500);
        assert!(unpack(packed.as_slice(), Path::new("d"), &to.path().join("t")).is_err());
    }

    #[tokio::test]
    async fn pipes_join_threads_and_tasks() {
        let (sender, receiver) = mpsc::channel(1);
        let writer = tokio::task::spawn_blocking(move || PipeWriter(sender).write_all(&[5; 100]));
        let reader = tokio::task::spawn_blocking(move || {
            let mut all = Vec::new();
            PipeReader::new(receiver).read_to_end(&mut all).map(|_| all)
        });
        writer.await.expect("a thread").expect("written");
        assert_eq!(reader.await.expect("a thread").expect("read"), [5; 100]);
    }
}
