//! The image that the demo and the tests run: busybox and an empty /tmp, put straight into a node's containerd.

use std::path::Path;
use std::process::Command;

use agent_runtime::cri::CRI_NAMESPACE;
use agent_runtime::image::{ImageFile, ImageTar};
use agent_runtime::import::{self, ImageRetention};
use anyhow::{Context, Result};

/// Name of the image; its entry point is busybox, so arguments start with an applet's name.
pub const BUSYBOX_IMAGE: &str = "orch.local/demo:1";

/// The host's static busybox, which becomes the image's.
const BINARY: &str = "/bin/busybox";

/// An archive of the image. Every applet has its own name in it: probes call `test`, and so does `kubectl cp`.
pub fn busybox() -> Result<ImageTar> {
    let data = std::fs::read(BINARY)
        .with_context(|| format!("{BINARY} (package busybox-static) is missing"))?;
    let paths: Vec<String> = applets()?.iter().map(|applet| format!("bin/{applet}")).collect();
    let mut files = vec![ImageFile::Regular { path: "bin/busybox", mode: 0o755, data }];
    // Everyday commands and `kubectl cp` write there.
    files.push(ImageFile::Directory { path: "tmp", mode: 0o1777 });
    files.extend(paths.iter().map(|path| ImageFile::Link { path, target: "busybox" }));
    Ok(ImageTar::single_layer(BUSYBOX_IMAGE, &files, &["/bin/busybox"]))
}

/// What the binary can be called as, besides its own name.
fn applets() -> Result<Vec<String>> {
    let listed = Command::new(BINARY).arg("--list").output();
    let listed = listed.with_context(|| format!("cannot run {BINARY}"))?.stdout;
    let names = String::from_utf8(listed).context("applet name is not UTF-8")?;
    let others = names.lines().filter(|name| !name.contains('/') && *name != "busybox");
    Ok(others.map(str::to_owned).collect())
}

/// Puts the image into the containerd behind `socket`.
pub async fn import(socket: &Path, image: &ImageTar) -> Result<()> {
    let channel = containerd_client::connect(socket)
        .await
        .with_context(|| format!("cannot connect to {}", socket.display()))?;
    import::import_tar(channel, CRI_NAMESPACE, image, ImageRetention::WhileUsed)
        .await
        .with_context(|| format!("cannot import {BUSYBOX_IMAGE}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyday_commands_have_their_own_names() {
        if !Path::new(BINARY).exists() {
            println!("SKIPPED everyday_commands_have_their_own_names: {BINARY} is missing");
            return;
        }
        let image = busybox().expect("made");
        for name in ["[", "find", "grep", "httpd", "ps", "sh", "tar", "test", "true", "wget"] {
            let path = format!("bin/{name}\0");
            let mut windows = image.bytes().windows(path.len());
            assert!(windows.any(|window| window == path.as_bytes()), "{name}");
        }
    }
}
