use std::io::Cursor;

use super::*;

fn busybox() -> ImageTar {
    let files = [
        ImageFile::Regular { path: "bin/busybox", mode: 0o755, data: b"program".to_vec() },
        ImageFile::Regular { path: "etc/passwd", mode: 0o644, data: b"root:x:0:0::/:\n".to_vec() },
        ImageFile::Link { path: "bin/sh", target: "busybox" },
        ImageFile::Directory { path: "tmp", mode: 0o1777 },
    ];
    ImageTar::single_layer("busybox:1", &files, &["/bin/busybox"])
}

fn read(tar: &[u8]) -> Result<Archive, ArchiveError> {
    Archive::read(&mut Cursor::new(tar))
}

fn bytes_of<'a>(tar: &'a [u8], blob: &'a Blob) -> &'a [u8] {
    match &blob.source {
        BlobSource::At(offset) => &tar[*offset as usize..][..blob.size as usize],
        BlobSource::Bytes(bytes) => bytes,
    }
}

#[test]
fn a_built_image_archive_is_read_back() {
    let tar = busybox();
    let archive = read(tar.bytes()).unwrap();
    let [image] = archive.images.as_slice() else { panic!("{archive:?}") };
    assert_eq!(image.names, ["docker.io/library/busybox:1"]);
    for blob in [&image.manifest, &image.config].into_iter().chain(&image.layers) {
        assert_eq!(digest(bytes_of(tar.bytes(), blob)), blob.digest, "{}", blob.media_type);
    }
    let layer = bytes_of(tar.bytes(), &image.layers[0]);
    let entries: Vec<_> = tar::Archive::new(layer)
        .entries()
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.path().unwrap().to_string_lossy().into_owned();
            (name, entry.header().mode().unwrap())
        })
        .collect();
    let expected = [
        ("bin/", 0o755),
        ("bin/busybox", 0o755),
        ("etc/", 0o755),
        ("etc/passwd", 0o644),
        ("bin/sh", 0o777),
        ("tmp/", 0o1777),
    ];
    assert_eq!(entries, expected.map(|(name, mode)| (name.to_owned(), mode)));
}

#[test]
fn building_is_deterministic() {
    assert_eq!(busybox(), busybox());
}

#[test]
fn docker_archives_get_a_manifest() {
    let mut tar = TarWriter::default();
    tar.file("abc/layer.tar", 0o644, b"not really a tar");
    tar.file("c.json", 0o644, b"{}");
    tar.file(
        "manifest.json",
        0o644,
        br#"[{"Config":"c.json","RepoTags":["a/b:2"],"Layers":["abc/layer.tar"]}]"#,
    );
    let tar = tar.finish();
    let archive = read(&tar).unwrap();
    let image = &archive.images[0];
    assert_eq!(image.names, ["docker.io/a/b:2"]);
    assert_eq!(image.layers[0].digest, digest(b"not really a tar"));
    assert_eq!(image.layers[0].media_type, LAYER);
    let manifest: Value = serde_json::from_slice(bytes_of(&tar, &image.manifest)).unwrap();
    assert_eq!(manifest["layers"][0]["digest"], image.layers[0].digest);
    assert_eq!(digest(bytes_of(&tar, &image.manifest)), image.manifest.digest);
}

#[test]
fn other_platforms_are_passed_over() {
    let mut tar = TarWriter::default();
    let index = format!(
        r#"{{"manifests":[{{"mediaType":"{MANIFEST}","digest":"sha256:00","size":1,"platform":{{"os":"linux","architecture":"s390x"}}}}]}}"#
    );
    tar.file("index.json", 0o644, index.as_bytes());
    assert!(matches!(read(&tar.finish()), Err(ArchiveError::NoImage)));
}

#[test]
fn bad_archives_say_what_is_wrong() {
    assert!(matches!(read(&[7; 2048]), Err(ArchiveError::Read(_))));
    assert!(matches!(read(&TarWriter::default().finish()), Err(ArchiveError::NoIndex)));

    let mut tar = TarWriter::default();
    tar.file("index.json", 0o644, b"[]");
    assert!(matches!(read(&tar.finish()), Err(ArchiveError::Malformed { .. })));

    let mut tar = TarWriter::default();
    let index = format!(r#"{{"manifests":[{{"mediaType":"{MANIFEST}","digest":"sha256:00"}}]}}"#);
    tar.file("index.json", 0o644, index.as_bytes());
    let error = read(&tar.finish()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "blobs/sha256/00 is named by the archive's index but is not in it"
    );
}

/// The list of entries names the layer, whose end is missing.
#[test]
fn a_truncated_archive_has_no_images() {
    let mut tar = TarWriter::default();
    tar.file("manifest.json", 0o644, br#"[{"Config":"c.json","Layers":["layer.tar"]}]"#);
    tar.file("c.json", 0o644, b"{}");
    tar.file("layer.tar", 0o644, &[7; 2048]);
    let tar = tar.finish();
    assert_eq!(read(&tar).unwrap().images[0].layers[0].size, 2048);
    let cut = tar.len() - 1024 - 512; // the end of an archive is two empty blocks
    assert!(matches!(read(&tar[..cut]), Err(ArchiveError::Read(_))));
}

#[test]
fn names_become_full() {
    for (short, full) in [
        ("busybox", "docker.io/library/busybox:latest"),
        ("busybox:1", "docker.io/library/busybox:1"),
        ("me/tool", "docker.io/me/tool:latest"),
        ("localhost/tool", "localhost/tool:latest"),
        ("registry:5000/tool", "registry:5000/tool:latest"),
        ("orch.local/pause:1", "orch.local/pause:1"),
        ("orch.local/pause@sha256:ab", "orch.local/pause@sha256:ab"),
    ] {
        assert_eq!(archive::canonical(short), full);
    }
}

/// Whatever an archive contains, reading it ends with images or an error.
#[test]
fn hostile_archives_are_errors() {
    let tar = busybox();
    // A small random generator with a fixed seed, so that failures are reproducible.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(state >> 33).unwrap() % below
    };
    let mut refused = 0;
    for _ in 0..3_000 {
        let mut bytes = tar.bytes().to_vec();
        for _ in 0..=random(8) {
            let at = random(bytes.len());
            bytes[at] = u8::try_from(random(256)).unwrap();
        }
        bytes.truncate(bytes.len() - random(2) * random(bytes.len()));
        if let Ok(archive) = read(&bytes) {
            for blob in archive.images.iter().flat_map(|image| &image.layers) {
                assert!(matches!(blob.source, BlobSource::At(_)), "{blob:?}");
            }
        } else {
            refused += 1;
        }
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn an_index_that_names_itself_is_not_followed_for_ever() {
    let digest = format!("sha256:{}", "a".repeat(64));
    let entry = format!(r#"{{"mediaType":"{INDEX}","digest":"{digest}"}}"#);
    // Three levels of a thousand entries each would mean a thousand million reads.
    let index = format!(r#"{{"manifests":[{}]}}"#, vec![entry; 1000].join(","));
    let mut tar = TarWriter::default();
    tar.file("index.json", 0o644, index.as_bytes());
    tar.file(&blob_path(&digest), 0o644, index.as_bytes());
    let outcome = read(&tar.finish());
    assert!(matches!(outcome, Err(ArchiveError::TooManyDocuments)), "{outcome:?}");
}

#[test]
fn a_layer_that_is_named_often_is_read_once() {
    struct Counted(Cursor<Vec<u8>>, u64);
    impl std::io::Read for Counted {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let len = self.0.read(buffer)?;
            self.1 += len as u64;
            Ok(len)
        }
    }
    impl std::io::Seek for Counted {
        fn seek(&mut self, to: std::io::SeekFrom) -> std::io::Result<u64> {
            self.0.seek(to)
        }
    }
    let layers = vec![r#""l.tar""#; 1000].join(",");
    let manifest = format!(r#"[{{"Config":"c.json","RepoTags":["a:1"],"Layers":[{layers}]}}]"#);
    let mut tar = TarWriter::default();
    tar.file("l.tar", 0o644, &[7; 1 << 16]);
    tar.file("c.json", 0o644, b"{}");
    tar.file("manifest.json", 0o644, manifest.as_bytes());
    let tar = tar.finish();
    let len = tar.len() as u64;
    let mut file = Counted(Cursor::new(tar), 0);
    let archive = Archive::read(&mut file).unwrap();
    assert_eq!(archive.images[0].layers.len(), 1000);
    assert!(file.1 < 4 * len, "{} bytes read of {len}", file.1);
}
