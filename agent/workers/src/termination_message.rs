//! Termination messages of containers: the file that each instance writes to, and what is read
//! after it has exited.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use agent_logs::log_files;
use agent_pod::desired::find_container;
use agent_pod::observed::{InstanceState, ObservedContainer};
use agent_pod::spec::Mount;
use agent_pod::termination::{FALLBACK_TO_LOGS, LOG_TAIL_BYTES, MESSAGE_BYTES, message_from_log};
use agent_pod::translate::log_directory;
use agent_volume::private_dirs;
use proto_api::core::v1::{Container, Pod};
use proto_daemon::private_files;

use super::pod_context::{PodContext, PodFileError};
use crate::garbage;

/// An empty file of the node, mounted at the container's `terminationMessagePath`.
pub fn mount(
    shared: &PodContext,
    pod: &Pod,
    container: &Container,
    attempt: u32,
) -> Result<Vec<Mount>, PodFileError> {
    if container.termination_message_path.is_empty() {
        return Ok(Vec::new());
    }
    let path = shared.termination_file(&pod.metadata.uid, &container.name, attempt);
    let made = create_file(&path);
    made.map_err(|source| PodFileError { verb: "make", path: path.clone(), source })?;
    Ok(vec![Mount {
        container_path: container.termination_message_path.clone(),
        host_path: path.to_string_lossy().into_owned(),
        // Without the container's label SELinux would not let it write.
        selinux_relabel: true,
        ..Mount::default()
    }])
}

fn create_file(path: &Path) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        private_dirs::make(parent)?;
    }
    // The container's user is unknown here and must be able to write.
    private_files::open_shared(path, 0o666)?.set_len(0)
}

/// Adds the termination message to an exited instance, if the runtime does not report it.
pub fn with_message(
    shared: &PodContext,
    pod: &Pod,
    mut instance: ObservedContainer,
) -> ObservedContainer {
    if let InstanceState::Exited(exit) = &mut instance.state
        && exit.message.is_empty()
    {
        let (name, attempt) = (&instance.name, instance.attempt);
        let container = find_container(pod, name);
        // Instances of another kubelet have the file elsewhere.
        let path = instance.message_file.as_ref().map(PathBuf::from);
        let path =
            path.unwrap_or_else(|| shared.termination_file(&pod.metadata.uid, name, attempt));
        exit.message = read_message(&path);
        let falls_back = container
            .is_some_and(|container| container.termination_message_policy == FALLBACK_TO_LOGS);
        if exit.message.is_empty() && exit.code != 0 && falls_back {
            exit.message = read_log_tail(&log_file(shared, pod, name, attempt));
        }
    }
    instance
}

/// The log file of an instance.
fn log_file(shared: &PodContext, pod: &Pod, container: &str, attempt: u32) -> PathBuf {
    let logs = log_directory(&shared.settings.facts.pod_logs_dir, pod);
    PathBuf::from(logs).join(container).join(format!("{attempt}.log"))
}

/// Removes the logs of an instance, also rotated ones, and its termination message. Files that
/// cannot be removed are removed with the pod.
pub fn remove_instance_files(shared: &PodContext, pod: &Pod, container: &str, attempt: u32) {
    let logs = PathBuf::from(log_directory(&shared.settings.facts.pod_logs_dir, pod));
    garbage::remove_instance_logs(&logs.join(container), attempt);
    let _ = fs::remove_file(shared.termination_file(&pod.metadata.uid, container, attempt));
}

/// Opens a file that a container may have replaced: follows no link and does not block on a FIFO.
fn open_untrusted(path: &Path) -> std::io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or(0);
    File::options().read(true).custom_flags(flags).open(path)
}

/// The end of the termination message, truncated as Kubernetes' kubelet does.
fn read_message(path: &Path) -> String {
    let limit = u64::try_from(MESSAGE_BYTES).unwrap_or(u64::MAX);
    let (bytes, begins_within) =
        open_untrusted(path).and_then(|file| tail(file, limit)).unwrap_or_default();
    let is_rest = |byte: &&u8| begins_within && **byte & 0b1100_0000 == 0b1000_0000;
    // Drops the rest of a truncated UTF-8 character.
    let cut = bytes.iter().take(3).take_while(is_rest).count();
    String::from_utf8_lossy(bytes.get(cut..).unwrap_or_default()).into_owned()
}

fn read_log_tail(path: &Path) -> String {
    let read = log_files::read(path).and_then(|file| tail(file, LOG_TAIL_BYTES));
    read.map(|(bytes, begins_within)| message_from_log(&bytes, begins_within)).unwrap_or_default()
}

/// The last bytes of a file, at most `limit`, and whether there are more before them.
fn tail(mut file: File, limit: u64) -> std::io::Result<(Vec<u8>, bool)> {
    let from = file.metadata()?.len().saturating_sub(limit);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok((bytes, from > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_message_file_is_writable_for_the_container() {
        let dir = tempfile::tempdir().expect("tempdir");
        let runtime = std::sync::Arc::new(agent_runtime::fake::FakeRuntime::new().0);
        let shared = crate::test_support::plain_context(runtime, dir.path());
        let mut container = Container { name: "c".into(), ..Container::default() };
        assert_eq!(mount(&shared, &Pod::default(), &container, 0).expect("none"), []);
        container.termination_message_path = "/dev/termination-log".into();
        let mounts = mount(&shared, &Pod::default(), &container, 0).expect("a mount");
        let [mount] = mounts.as_slice() else { panic!("one mount: {mounts:?}") };
        assert_eq!(mount.container_path, "/dev/termination-log");
        assert!(mount.selinux_relabel && !mount.read_only, "{mount:?}");
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &fs::metadata(&mount.host_path).expect("file").permissions(),
        );
        assert_eq!(mode & 0o777, 0o666);
    }

    #[test]
    fn the_end_of_a_long_message_is_shown() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("m");
        let long = format!("{}{}", "a".repeat(5000), "b".repeat(MESSAGE_BYTES));
        let cut = format!("{}ü{}", "a".repeat(5000), "b".repeat(MESSAGE_BYTES - 1));
        for (written, expect) in [
            ("", String::new()),
            ("short", "short".to_owned()),
            (long.as_str(), "b".repeat(MESSAGE_BYTES)),
            (cut.as_str(), "b".repeat(MESSAGE_BYTES - 1)),
        ] {
            fs::write(&path, written).expect("written");
            assert!(read_message(&path) == expect, "{}", written.len());
        }
        // A container writes any bytes.
        fs::write(&path, [0x80, 0x80, b'x']).expect("written");
        assert_eq!(read_message(&path), "\u{fffd}\u{fffd}x");
        assert_eq!(read_message(&dir.path().join("none")), "");
    }
}
