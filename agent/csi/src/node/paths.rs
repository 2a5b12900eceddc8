//! Where drivers' volumes and their records lie.

use std::io;
use std::path::{Path, PathBuf};

use proto_api::names::Names;
use sha2::{Digest as _, Sha256};

use crate::record::Record;

/// Directories by the ecosystem's layout.
#[derive(Clone, Debug)]
pub(super) struct Paths {
    pods: PathBuf,
    plugins: PathBuf,
    /// `<domain>/csi`, as objects of the API name the plugin.
    plugin: String,
    /// `<domain>~csi`, as directories are called after it.
    directory: String,
}

impl Paths {
    pub(super) fn new(root: &Path, names: &Names) -> Self {
        let plugin = names.label("csi");
        let plugins = root.join("plugins").join(&plugin);
        let directory = plugin.replace('/', "~");
        Self { pods: root.join("pods"), plugins, plugin, directory }
    }

    pub(super) fn plugin(&self) -> &str {
        &self.plugin
    }

    /// Where a pod has the volume.
    pub(super) fn target(&self, uid: &str, record: &Record) -> PathBuf {
        if record.block {
            self.plugins.join("volumeDevices/publish").join(&record.spec_name).join(uid)
        } else {
            self.record(uid, record).join("mount")
        }
    }

    /// The directory of a pod's record.
    pub(super) fn record(&self, uid: &str, record: &Record) -> PathBuf {
        let kind = if record.block { "volumeDevices" } else { "volumes" };
        self.pods.join(uid).join(kind).join(&self.directory).join(&record.spec_name)
    }

    /// Where the volume is staged.
    pub(super) fn stage(&self, record: &Record) -> PathBuf {
        if record.block {
            self.plugins.join("volumeDevices/staging").join(&record.spec_name)
        } else {
            self.stage_record(record).join("globalmount")
        }
    }

    /// The directory of the stage's record.
    pub(super) fn stage_record(&self, record: &Record) -> PathBuf {
        let digest = Sha256::digest(record.handle.as_bytes());
        let name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        self.plugins.join(&record.driver).join(name)
    }

    /// Directories that may be of the records of stages, of all drivers.
    pub(super) fn stage_records(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for driver in below(&self.plugins)?.into_iter().filter(|path| path.is_dir()) {
            found.extend(below(&driver)?);
        }
        Ok(found)
    }

    /// Directories of the records of a pod.
    pub(super) fn records_of(&self, uid: &str) -> io::Result<Vec<PathBuf>> {
        let pod = self.pods.join(uid);
        let mut found = below(&pod.join("volumes").join(&self.directory))?;
        found.extend(below(&pod.join("volumeDevices").join(&self.directory))?);
        Ok(found)
    }

    /// Directories of the records of all pods, each with the pod's uid.
    pub(super) fn pod_records(&self) -> io::Result<Vec<(String, PathBuf)>> {
        let mut found = Vec::new();
        for pod in below(&self.pods)? {
            let uid = pod.file_name().unwrap_or_default().to_string_lossy().into_owned();
            found.extend(self.records_of(&uid)?.into_iter().map(|path| (uid.clone(), path)));
        }
        Ok(found)
    }
}

/// What is in a directory; nothing in one that is not there.
fn below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries.map(|entry| entry.map(|entry| entry.path())).collect()
}
