//! Paths of CSI volumes and their records.

use std::io;
use std::path::{Path, PathBuf};

use proto_api::names::Names;
use proto_api::sha256_hex;

use crate::record::VolumeRecord;

/// Paths in the kubelet's layout.
#[derive(Clone, Debug)]
pub(super) struct Paths {
    pods: PathBuf,
    plugins: PathBuf,
    /// `<domain>/csi`, the plugin's name in API objects.
    plugin: String,
    /// `<domain>~csi`, the plugin's name in directories.
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

    /// Target path of a pod's volume.
    pub(super) fn target(&self, uid: &str, record: &VolumeRecord) -> PathBuf {
        if record.block {
            self.plugins.join("volumeDevices/publish").join(&record.spec_name).join(uid)
        } else {
            self.record(uid, record).join("mount")
        }
    }

    /// Directory of a pod's record.
    pub(super) fn record(&self, uid: &str, record: &VolumeRecord) -> PathBuf {
        let kind = if record.block { "volumeDevices" } else { "volumes" };
        self.pods.join(uid).join(kind).join(&self.directory).join(&record.spec_name)
    }

    /// Staging path of a volume.
    pub(super) fn stage(&self, record: &VolumeRecord) -> PathBuf {
        if record.block {
            self.plugins.join("volumeDevices/staging").join(&record.spec_name)
        } else {
            self.stage_record(record).join("globalmount")
        }
    }

    /// Directory of a stage record.
    pub(super) fn stage_record(&self, record: &VolumeRecord) -> PathBuf {
        self.plugins.join(&record.driver).join(sha256_hex(record.handle.as_bytes()))
    }

    /// Candidate directories of stage records of all drivers.
    pub(super) fn stage_records(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for driver in below(&self.plugins)?.into_iter().filter(|path| path.is_dir()) {
            found.extend(below(&driver)?);
        }
        Ok(found)
    }

    /// Directories of a pod's records.
    pub(super) fn records_of(&self, uid: &str) -> io::Result<Vec<PathBuf>> {
        let pod = self.pods.join(uid);
        let mut found = below(&pod.join("volumes").join(&self.directory))?;
        found.extend(below(&pod.join("volumeDevices").join(&self.directory))?);
        Ok(found)
    }

    /// Directories of the records of all pods, with the pods' uids.
    pub(super) fn pod_records(&self) -> io::Result<Vec<(String, PathBuf)>> {
        let mut found = Vec::new();
        for pod in below(&self.pods)? {
            let uid = pod.file_name().unwrap_or_default().to_string_lossy().into_owned();
            found.extend(self.records_of(&uid)?.into_iter().map(|path| (uid.clone(), path)));
        }
        Ok(found)
    }
}

/// Entries of a directory; empty if it does not exist.
fn below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries.map(|entry| entry.map(|entry| entry.path())).collect()
}
