//! Archives of files: what a container sends when files are copied from it, and images that are imported.

// A public module of agent-runtime, which stands alone; the rest of the crate is clients of gRPC.
#[allow(dead_code, unused_imports, reason = "the fuzzer uses a part of the file")]
#[path = "../../../agent/runtime/src"]
mod agent_runtime {
    pub mod image;
}

/// The checksum of every header is made right: otherwise hardly an input would be read beyond its first block.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 512;
    let mut archive = bytes.to_vec();
    let mut at = 0_usize;
    while let Some(block) = archive.get_mut(at..).and_then(|rest| rest.get_mut(..BLOCK)) {
        let mut header = tar::Header::new_old();
        header.as_mut_bytes().copy_from_slice(block);
        if block.iter().any(|byte| *byte != 0) {
            header.set_cksum();
            block.copy_from_slice(header.as_bytes());
        }
        let len = header.entry_size().ok().and_then(|len| usize::try_from(len).ok());
        let blocks = len.unwrap_or(0).div_ceil(BLOCK).saturating_add(1);
        at = at.saturating_add(blocks.saturating_mul(BLOCK));
    }
    archive
}

/// An archive of entries: names, kinds, modes and contents.
fn archive(entries: &[(&str, tar::EntryType, u32, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, kind, mode, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(*mode);
        header.set_size(content.len() as u64);
        let _ = match kind {
            tar::EntryType::Symlink | tar::EntryType::Link => {
                builder.append_link(&mut header, name, "../kept")
            }
            _ => builder.append_data(&mut header, name, *content),
        };
    }
    builder.into_inner().unwrap_or_default()
}

/// What is copied from a container.
pub mod copied_archive {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::{Path, PathBuf};

    use orchctl_streams::archive::{pack, unpack};
    use tar::EntryType;

    use super::*;

    /// The files and directories below a place, with the contents of files; links are left out.
    fn tree(top: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        let mut found = BTreeMap::new();
        let mut left = vec![top.to_owned()];
        while let Some(path) = left.pop() {
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            let name = path.strip_prefix(top).map(Path::to_owned).unwrap_or_default();
            if metadata.is_dir() {
                let entries = fs::read_dir(&path).into_iter().flatten();
                left.extend(entries.flatten().map(|entry| entry.path()));
                found.insert(name, None);
            } else if metadata.is_file() {
                found.insert(name, Some(fs::read(&path).unwrap_or_default()));
            }
        }
        found
    }

    /// Unpacks the archive below a directory, which by the first byte is there or not. Nothing outside of it changes, nothing is larger than the archive, and
    /// what was unpacked is packed and unpacked alike.
    pub fn check(bytes: &[u8]) {
        let Some((first, archive)) = bytes.split_first() else { return };
        let archive = with_checksums(archive);
        let dir = tempfile::tempdir().expect("a directory");
        let (kept, target) = (dir.path().join("kept"), dir.path().join("target"));
        fs::create_dir(&kept).expect("a directory");
        fs::write(kept.join("file"), "kept").expect("a file");
        if first & 1 == 1 {
            fs::create_dir(&target).expect("a directory");
            std::os::unix::fs::symlink("../kept", target.join("out")).expect("a link");
        }
        let unpacked = unpack(archive.as_slice(), Path::new("d"), &target);
        let outside: Vec<_> = fs::read_dir(dir.path()).expect("a directory").flatten().collect();
        assert!(outside.len() <= 2, "{outside:?}");
        let expected = [(PathBuf::new(), None), ("file".into(), Some(b"kept".to_vec()))];
        assert_eq!(tree(&kept), BTreeMap::from(expected));
        let found = tree(&target);
        let len: usize = found.values().flatten().map(Vec::len).sum();
        assert!(len <= archive.len(), "{len} bytes from {}", archive.len());
        if unpacked.is_err() || !target.exists() {
            return;
        }
        let mut packed = Vec::new();
        pack(&target, Path::new("d"), &mut packed).expect("what was written can be read");
        let again = dir.path().join("again");
        unpack(packed.as_slice(), Path::new("d"), &again).expect("own archive");
        assert_eq!(tree(&again), found);
    }

    /// Trees, names outside of them, links, long names, attributes.
    pub fn seeds() -> Vec<Vec<u8>> {
        let long = format!("d/{}", "n".repeat(120));
        let all = [
            archive(&[
                ("d", EntryType::Directory, 0o755, b""),
                ("d/a", EntryType::Regular, 0o644, b"text"),
                ("d/b/c", EntryType::Regular, 0o600, b""),
            ]),
            archive(&[("d", EntryType::Regular, 0o644, b"one file")]),
            archive(&[
                ("d/link", EntryType::Symlink, 0o777, b""),
                ("d/out/evil", EntryType::Regular, 0o644, b"evil"),
                ("other", EntryType::Regular, 0o644, b"evil"),
            ]),
            archive(&[(&long, EntryType::Regular, 0o644, b"x")]),
            archive(&[
                ("p", EntryType::XHeader, 0o644, b"12 path=d/x\n"),
                ("d/a", EntryType::Regular, 0o644, b"x"),
            ]),
        ];
        let with_first = |first: u8| move |bytes: &Vec<u8>| [&[first], bytes.as_slice()].concat();
        all.iter().map(with_first(0)).chain(all.iter().take(3).map(with_first(1))).collect()
    }
}

/// Images.
pub mod image_archive {
    use std::io::Cursor;

    use super::agent_runtime::image::{Archive, Blob, BlobSource, ImageFile, ImageTar};
    use super::*;

    /// Reads the archive: what it says of its images lies within it.
    pub fn check(bytes: &[u8]) {
        let archive = with_checksums(bytes);
        let Ok(found) = Archive::read(&mut Cursor::new(archive.as_slice())) else { return };
        assert!(!found.images.is_empty());
        let lies_within = |blob: &Blob| match &blob.source {
            BlobSource::At(offset) => {
                offset.checked_add(blob.size).is_some_and(|end| end <= archive.len() as u64)
            }
            BlobSource::Bytes(made) => made.len() as u64 == blob.size,
        };
        for image in &found.images {
            let blobs = [&image.manifest, &image.config].into_iter().chain(&image.layers);
            blobs.for_each(|blob| assert!(lies_within(blob), "{blob:?}"));
        }
    }

    /// An image of each form.
    pub fn seeds() -> Vec<Vec<u8>> {
        let files = [ImageFile::Regular { path: "a", mode: 0o755, data: b"x".to_vec() }];
        let layout = ImageTar::single_layer("a:1", &files, &["/a"]);
        let docker = archive(&[
            ("c.json", tar::EntryType::Regular, 0o644, b"{}"),
            ("l/layer.tar", tar::EntryType::Regular, 0o644, b"\x1f\x8b"),
            (
                "manifest.json",
                tar::EntryType::Regular,
                0o644,
                br#"[{"Config":"c.json","RepoTags":["a:1"],"Layers":["l/layer.tar"]}]"#,
            ),
        ]);
        let seeds = vec![layout.bytes().to_vec(), docker];
        assert!(seeds.iter().all(|seed| Archive::read(&mut Cursor::new(seed)).is_ok()));
        seeds
    }
}
