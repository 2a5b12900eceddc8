//! The image that the demo and the tests run: busybox and an empty /tmp, put straight into a node's containerd.

use std::path::Path;

use agent_runtime::cri::CRI_NAMESPACE;
use agent_runtime::image::{ImageFile, ImageTar};
use agent_runtime::import::{self, ImageRetention};
use anyhow::{Context, Result};

/// Name of the image; its entry point is busybox, so arguments start with an applet's name.
pub const BUSYBOX_IMAGE: &str = "orch.local/demo:1";

/// What can be called by its own name in the image.
const APPLETS: [&str; 14] = [
    "sh", "cat", "ls", "echo", "env", "id", "ip", "nc", "nslookup", "sleep", "stat", "tar", "true",
    "wget",
];

/// An archive of the image, made from the host's static busybox.
pub fn busybox() -> Result<ImageTar> {
    let binary = "/bin/busybox";
    let data = std::fs::read(binary)
        .with_context(|| format!("{binary} (package busybox-static) is missing"))?;
    let paths: Vec<String> = APPLETS.iter().map(|applet| format!("bin/{applet}")).collect();
    let mut files = vec![ImageFile::Regular { path: "bin/busybox", mode: 0o755, data }];
    // Everyday commands and `kubectl cp` write there.
    files.push(ImageFile::Directory { path: "tmp", mode: 0o1777 });
    files.extend(paths.iter().map(|path| ImageFile::Link { path, target: "busybox" }));
    Ok(ImageTar::single_layer(BUSYBOX_IMAGE, &files, &["/bin/busybox"]))
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
